"""What is measured: the shape, the inputs of all ranks, and the bytes that count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.barrier import Barrier
from benchmarks.shared_tensor import SharedTensor
from deep_ll import reference

OPS = ("dispatch", "combine", "combine_zero_copy", "pair")
MAX_ITERS = 4096  # of one run command


@dataclass(frozen=True)
class Shape:
    """One configuration."""

    ep: int
    tokens: int
    hidden: int
    topk: int
    experts: int
    dtype: str
    scales: str = "rows"  # or columns, of deep_ll's FP8 rows
    ranks_per_node: int = 0  # between nodes no memory is mapped; 0: one node

    @property
    def use_fp8(self) -> bool:
        return self.dtype == "fp8"

    @property
    def local_experts(self) -> int:
        return self.experts // self.ep

    @property
    def row_bytes(self) -> int:
        """One dispatched row without its scales."""
        return self.hidden if self.use_fp8 else 2 * self.hidden

    @property
    def num_scales(self) -> int:
        return self.hidden // reference.GROUP if self.use_fp8 else 0

    @property
    def is_split(self) -> bool:
        """Whether there is more than one node."""
        return 0 < self.ranks_per_node < self.ep

    @property
    def dispatched_bytes(self) -> int:
        """What one choice takes on its way to the expert."""
        return self.row_bytes + (4 * self.num_scales + 16 if self.use_fp8 else 0)

    def wire_bytes(self, op: str) -> int:
        """Bytes of one rank as DeepEP's test counts them: per choice, its own included."""
        dispatch = self.dispatched_bytes
        per_choice = {"dispatch": dispatch, "pair": dispatch + 2 * self.hidden}
        return self.tokens * self.topk * per_choice.get(op, 2 * self.hidden)


class Inputs:
    """The tokens and choices of all ranks, and what the oracle says they look like when sent."""

    def __init__(self, shape: Shape, seed: int) -> None:
        tokens = [shape.ep, shape.tokens]
        self.x = SharedTensor([*tokens, shape.hidden], torch.bfloat16)
        self.topk_idx = SharedTensor([*tokens, shape.topk], torch.int64)
        self.topk_weights = SharedTensor([*tokens, shape.topk], torch.float32)
        self.sent_rows = SharedTensor([*tokens, shape.row_bytes], torch.uint8)
        self.sent_scales = SharedTensor([*tokens, max(shape.num_scales, 1)], torch.float32)
        self.routing = SharedTensor([*tokens, shape.topk], torch.int32)
        # What combine must return; the first contestant's ranks fill it (oracle.py).
        self.combined = SharedTensor([*tokens, shape.hidden], torch.bfloat16)
        self.combined_known = SharedTensor([shape.ep], torch.uint8)
        self._fill(shape, torch.Generator().manual_seed(seed))

    def _fill(self, shape: Shape, random: torch.Generator) -> None:
        for rank in range(shape.ep):
            x = torch.randn(shape.tokens, shape.hidden, generator=random).bfloat16()
            scores = torch.rand(shape.tokens, shape.experts, generator=random)
            weights = torch.rand(shape.tokens, shape.topk, generator=random)
            self.x.tensor[rank] = x
            self.topk_idx.tensor[rank] = scores.topk(shape.topk, sorted=False).indices
            self.topk_weights.tensor[rank] = weights / shape.topk
            rows, scales = reference.encode(x, use_fp8=shape.use_fp8)
            self.sent_rows.tensor[rank] = rows.view(torch.uint8)
            if scales is not None:
                self.sent_scales.tensor[rank] = scales
        self.routing.tensor.copy_(self.topk_idx.tensor)

    def sent(self, shape: Shape, rank: int) -> tuple[Tensor, Tensor | None]:
        """The rows that `rank` sends and their scales, as `reference.encode` returns them."""
        rows = self.sent_rows.tensor[rank]
        if not shape.use_fp8:
            return rows.view(torch.bfloat16), None
        return rows.view(torch.float8_e4m3fn), self.sent_scales.tensor[rank]

    def close(self) -> None:
        """Gives the descriptors back."""
        for shared in vars(self).values():
            shared.close()


@dataclass
class Job:
    """All that a rank process must know; it travels to it by pickle."""

    shape: Shape
    inputs: Inputs
    barrier: Barrier
    stamps: SharedTensor  # float64 [ranks, MAX_ITERS, len(OPS), 2]: begin and end, seconds
    timeout_s: float
    disable_p2p: bool = False  # for deep_ll: whether all goes over the link


def dequantized(rows: Tensor, scales: Tensor | None) -> Tensor:
    """Sent or received rows as float32."""
    return rows.float() if scales is None else reference.dequantize(rows, scales)


def expert_output(inputs: Tensor, gain: Tensor) -> Tensor:
    """The stand-in for an expert: its input times a number of its own. Not timed."""
    return (inputs * gain).bfloat16()


def expert_gains(shape: Shape) -> Tensor:
    """A different gain for every expert, so that a wrong row shows."""
    return 1 + torch.arange(shape.experts, dtype=torch.float32) / shape.experts
