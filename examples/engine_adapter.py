"""An adapter between a serving engine's modular MoE kernel and deep_ll: prepare, experts, finalize.

The engine's experts take the batched format: [E_local, rows, hidden] and how many rows each expert
has. As a program it runs steps on several rank processes and checks every token.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from moe_decode import (
    EXPERTS_PER_RANK,
    HIDDEN,
    MAX_TOKENS,
    TOLERANCE,
    TOP_K,
    num_tokens,
    plain_model,
    relative_errors,
)
from moe_layer import Weights
from torch import Tensor

import deep_ll
from deep_ll.testing import RankPool

Receive = Callable[[], None]


class Batched(NamedTuple):
    """Tokens by expert, as grouped GEMMs take them; rows behind the counts may hold anything."""

    rows: Tensor  # [E_local, R*M, hidden]: float8_e4m3fn with scales, else bfloat16
    scales: Tensor | None  # float32 [E_local, R*M, hidden/128]
    expert_num_tokens: Tensor  # int32 [E_local]


class PrepareFinalize:
    """What an engine calls around its experts. One object for all layers, or one for each.

    Args:
        buffer: of all ranks that share the experts.
        max_tokens: of one rank in one step; the same on all ranks.
        num_experts: of all ranks.
        use_fp8: quantise what is dispatched, 128 channels a scale.
    """

    def __init__(
        self, buffer: deep_ll.Buffer, max_tokens: int, num_experts: int, *, use_fp8: bool
    ) -> None:
        self.buffer, self.max_tokens, self.num_experts = buffer, max_tokens, num_experts
        self.use_fp8 = use_fp8
        # A handle for each micro-batch: two may be between prepare and finalize.
        self._handles: list[deep_ll.Handle | None] = [None, None]

    def prepare_async(
        self, x: Tensor, topk_ids: Tensor, microbatch: int = 0
    ) -> tuple[Receive, Callable[[], Batched]]:
        """Sends tokens. The first result is to be called when they are needed, then the second."""
        received, counts, handle, _, hook = self.buffer.low_latency_dispatch(
            x,
            topk_ids,
            self.max_tokens,
            self.num_experts,
            use_fp8=self.use_fp8,
            return_recv_hook=True,
        )
        assert hook is not None
        self._handles[microbatch] = handle
        rows, scales = received if isinstance(received, tuple) else (received, None)
        return hook, lambda: Batched(rows, scales, counts)

    def prepare(self, x: Tensor, topk_ids: Tensor, microbatch: int = 0) -> Batched:
        """Sends tokens and receives."""
        hook, receiver = self.prepare_async(x, topk_ids, microbatch)
        hook()
        return receiver()

    def finalize_async(
        self,
        output: Tensor,
        expert_output: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        microbatch: int = 0,
    ) -> Receive:
        """Sends the experts' outputs back; `output` is there after the result was called."""
        handle, self._handles[microbatch] = self._handles[microbatch], None
        if handle is None:
            raise RuntimeError(f"finalize of micro-batch {microbatch} without its prepare")
        _, _, hook = self.buffer.low_latency_combine(
            expert_output, topk_ids, topk_weights, handle, return_recv_hook=True, out=output
        )
        assert hook is not None
        return hook

    def finalize(
        self,
        output: Tensor,
        expert_output: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        microbatch: int = 0,
    ) -> None:
        """Sends the experts' outputs back and adds them up into `output`."""
        self.finalize_async(output, expert_output, topk_weights, topk_ids, microbatch)()


class BatchedExperts:
    """SwiGLU of this rank's experts over the batched format; stands for an engine's kernels."""

    def __init__(self, weights: Weights, rank: int, num_ranks: int) -> None:
        num_local = weights.gate.shape[0] // num_ranks
        mine = slice(rank * num_local, (rank + 1) * num_local)
        parts = (weights.gate_proj, weights.up_proj, weights.down_proj)
        self._gate, self._up, self._down = (p[mine].to(torch.bfloat16, copy=True) for p in parts)

    def __call__(self, batched: Batched) -> Tensor:
        """bfloat16 [E_local, R*M, hidden]."""
        num_local, num_rows, hidden = batched.rows.shape
        output = torch.empty(num_local, num_rows, hidden, dtype=torch.bfloat16)
        for expert, count in enumerate(batched.expert_num_tokens.tolist()):
            rows = dequantised(batched, expert, count)
            gated = F.silu(rows @ self._gate[expert].t()) * (rows @ self._up[expert].t())
            output[expert, :count] = gated @ self._down[expert].t()
        return output


def dequantised(batched: Batched, expert: int, count: int) -> Tensor:
    """The rows of one local expert as bfloat16 [count, hidden]."""
    rows = batched.rows[expert, :count]
    if batched.scales is None:
        return rows
    groups = rows.float().unflatten(1, (-1, 128)) * batched.scales[expert, :count, :, None]
    return groups.flatten(1).bfloat16()


class Layer(NamedTuple):
    """What a rank keeps of one MoE layer."""

    gate: Tensor
    adapter: PrepareFinalize
    experts: BatchedExperts

    def forward(self, x: Tensor) -> Tensor:
        """One step, bfloat16 [num_tokens, hidden] to the same. Collective, also without tokens."""
        scores = F.linear(x.float(), self.gate).softmax(dim=-1)
        topk_weights, topk_ids = scores.topk(TOP_K, dim=-1)
        topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)
        output = torch.empty_like(x)
        batched = self.adapter.prepare(x, topk_ids)
        self.adapter.finalize(output, self.experts(batched), topk_weights, topk_ids)
        return output


@functools.cache  # as engines do: a process keeps its buffer
def rank_layer(group: Any, weights_file: str, use_fp8: bool) -> Layer:
    """This rank's layer."""
    # On one host hooks have nothing to overlap with; the warning says so.
    warnings.filterwarnings("ignore", "return_recv_hook=True")
    weights = Weights(**torch.load(weights_file, mmap=True))
    num_experts, hidden = weights.gate.shape
    buffer = deep_ll.Buffer(
        group,
        num_rdma_bytes=deep_ll.Buffer.get_low_latency_rdma_size_hint(
            MAX_TOKENS, hidden, dist.get_world_size(group), num_experts
        ),
    )
    adapter = PrepareFinalize(buffer, MAX_TOKENS, num_experts, use_fp8=use_fp8)
    experts = BatchedExperts(weights, buffer.rank, buffer.group_size)
    return Layer(weights.gate.clone(), adapter, experts)


def step(group: Any, weights_file: str, xs: list[Tensor], use_fp8: bool) -> Tensor:
    """One step of one rank."""
    return rank_layer(group, weights_file, use_fp8).forward(xs[dist.get_rank(group)])


@torch.no_grad()
def main() -> int:
    """Returns 0 if all tokens are right, else 1."""
    parser = argparse.ArgumentParser(description="Prepare and finalize around an engine's experts")
    parser.add_argument("--ranks", type=int, default=4, help="rank processes")
    parser.add_argument("--steps", type=int, default=3, help="decode steps")
    args = parser.parse_args()
    torch.manual_seed(0)
    name, weights, reference = plain_model(EXPERTS_PER_RANK * args.ranks)
    print(f"{args.ranks} ranks, {weights.gate.shape[0]} experts, top-{TOP_K}, hidden {HIDDEN}")
    good = True
    with tempfile.TemporaryDirectory() as folder, RankPool(args.ranks) as pool:
        weights_file = str(Path(folder, "weights.pt"))
        torch.save(weights._asdict(), weights_file)
        for step_idx in range(args.steps):
            counts = [num_tokens(rank, step_idx, args.ranks) for rank in range(args.ranks)]
            xs = [torch.randn(count, HIDDEN).bfloat16() for count in counts]
            expected = reference(torch.cat(xs).float())
            for kind, tolerance in TOLERANCE.items():
                out = torch.cat(pool.run(step, weights_file, xs, kind == "fp8"))
                worst = float(relative_errors(out, expected).max())
                good &= worst <= tolerance
                print(f"step {step_idx}, tokens {counts}, {kind}: largest error {worst:.5f}")
    print(f"{'all' if good else 'NOT all'} tokens within tolerance of {name}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
