"""Cases of one exchange, as data: who sends what where, and how the calls are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deep_ll import reference

CASTS: dict[str, dict[str, bool]] = {
    "bf16": {"use_fp8": False},
    "fp8": {"use_fp8": True},
    "rounded": {"use_fp8": True, "round_scale": True},
    "ue8m0": {"use_fp8": True, "round_scale": True, "use_ue8m0": True},
}


@dataclass(frozen=True)
class Case:
    """The defaults are one ordinary exchange; a case names what it changes."""

    world: int = 4
    experts: int = 8
    tokens: int | tuple[int, ...] = 16  # per rank
    max_tokens: int = 16
    hidden: int = 256
    topk: int = 4
    cast: str = "fp8"
    mode: str = "plain"  # plain, hook, event
    zero_copy: bool = False
    logfmt: bool = False
    routing: str = "random"  # random, holes (some -1), hot (expert 0 always), none (all -1)
    values: str = "normal"  # normal, zeros, huge, tiny, wild (any bits)
    idx: str = "int64"
    rounds: int = 3  # both parities, and the first again
    threads: int | None = None
    out: bool = False
    by_bytes: bool = False  # Buffer(num_rdma_bytes=...) instead of the three sizes
    seed: int = 0

    def __str__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return (
            ",".join(f"{f.name}={getattr(self, f.name)}".replace(" ", "") for f in changed) or "-"
        )

    def experts_of(self, rank: int) -> range:
        return reference.experts_of(rank, self.world, self.experts)

    def num_tokens(self, rank: int) -> int:
        return self.tokens if isinstance(self.tokens, int) else self.tokens[rank]


class Inputs(NamedTuple):
    """What one rank gives to dispatch and combine."""

    x: Tensor  # bfloat16 [n, hidden]
    topk_idx: Tensor  # [n, topk]
    topk_weights: Tensor  # float32 [n, topk]


def make_inputs(case: Case, round_idx: int) -> list[Inputs]:
    """The inputs of every rank; the same on all of them."""
    return [_rank_inputs(case, round_idx, rank) for rank in range(case.world)]


def make_outputs(case: Case, round_idx: int, received: list[Any]) -> list[list[Tensor]]:
    """An answer of every expert to what it received: bfloat16 [count, hidden]."""
    gen = _generator(case, round_idx, case.world)
    return [
        [make_values(case.values, (e.src_info.numel(), case.hidden), gen) for e in experts]
        for experts in received
    ]


def make_values(kind: str, shape: tuple[int, int], gen: torch.Generator) -> Tensor:
    bits = torch.randint(-(2**15), 2**15, shape, generator=gen, dtype=torch.int16)
    if kind == "wild":
        return bits.view(torch.bfloat16)
    if kind == "zeros":
        return (bits & -(2**15)).view(torch.bfloat16)  # both signs
    if kind == "huge":
        return ((bits & -(2**15)) | 0x7F7F).view(torch.bfloat16)
    if kind == "tiny":
        return (bits & ~0x7F80).view(torch.bfloat16)  # denormals
    normal = torch.randn(shape, generator=gen)
    spread = torch.randint(-12, 12, (shape[0], 1), generator=gen)
    return (normal * 2.0**spread).bfloat16()


def _generator(case: Case, round_idx: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed((case.seed * 1000 + round_idx) * 1000 + stream)


def _rank_inputs(case: Case, round_idx: int, rank: int) -> Inputs:
    gen = _generator(case, round_idx, rank)
    num_tokens = case.num_tokens(rank)
    x = make_values(case.values, (num_tokens, case.hidden), gen)
    topk_idx = _choices(case, num_tokens, gen).to(getattr(torch, case.idx))
    weights = torch.randn(num_tokens, case.topk, generator=gen)
    if case.values == "wild":
        bits = torch.randint(-(2**31), 2**31, weights.shape, generator=gen).to(torch.int32)
        weights = bits.view(torch.float32)
    return Inputs(x, topk_idx, weights)


def _choices(case: Case, num_tokens: int, gen: torch.Generator) -> Tensor:
    topk_idx = torch.rand(num_tokens, case.experts, generator=gen).argsort(dim=1)[:, : case.topk]
    if case.routing == "none":
        topk_idx = torch.full_like(topk_idx, -1)
    if case.routing == "holes":
        topk_idx = topk_idx.where(torch.rand(topk_idx.shape, generator=gen) < 0.6, -1)
    if case.routing == "hot":
        has_zero = (topk_idx == 0).any(dim=1)
        topk_idx[~has_zero, 0] = 0
    return topk_idx.contiguous()
