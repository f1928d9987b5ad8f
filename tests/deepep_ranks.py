"""What rank processes need to play a program that imports deep_ep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import torch
from cases import CASTS, Case, Inputs, make_inputs
from torch import Tensor

import deep_ll.compat.deep_ep
from deep_ll import reference
from deep_ll.testing.compare import assert_same_bits

EXPERT_FACTORS = (0.5, -2.0, 0.25, 4.0)  # exact in bfloat16


@contextmanager
def deep_ep_installed(timeout_s: float = 30) -> Iterator[ModuleType]:
    """`deep_ep` for the duration of a test; the rank's environment is as before afterwards."""
    before = dict(os.environ)
    os.environ["DEEP_LL_TIMEOUT_S"] = str(timeout_s)
    try:
        yield deep_ll.compat.deep_ep.install()
    finally:
        deep_ll.compat.deep_ep.uninstall()
        os.environ.clear()
        os.environ.update(before)


def factor(expert: int) -> float:
    """What a test's expert multiplies its rows by."""
    return EXPERT_FACTORS[expert % len(EXPERT_FACTORS)]


def run_experts(rows: Tensor, counts: Tensor, first_expert: int) -> Tensor:
    """The outputs of this rank's experts, in combine's layout; rows nobody sent become NaN."""
    outputs = torch.full_like(rows, torch.nan)
    for local, count in enumerate(counts.tolist()):
        outputs[local, :count] = rows[local, :count] * factor(first_expert + local)
    return outputs


def as_bfloat16(recv_x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Received rows as the experts want them; those behind the counts may be anything."""
    if isinstance(recv_x, Tensor):
        return recv_x
    rows, scales = recv_x
    return reference.dequantize(rows, scales).bfloat16()


class Step(NamedTuple):
    """One layer's exchange of all ranks: what goes in, and what must come out on one of them."""

    mine: Inputs
    combined: Tensor


def step_of(case: Case, step_idx: int, rank: int, gone: tuple[int, ...] = ()) -> Step:
    """The oracle's view of a step. Ranks that are gone send nothing, and choices of their experts
    count as -1."""
    inputs = make_inputs(case, step_idx)
    owners = [i.topk_idx.div(case.experts // case.world, rounding_mode="floor") for i in inputs]
    chosen = [
        i.topk_idx.masked_fill(torch.isin(o, torch.tensor(gone)), -1)[: 0 if r in gone else None]
        for r, (i, o) in enumerate(zip(inputs, owners, strict=True))
    ]
    received = reference.dispatch(
        [i.x[: len(idx)] for i, idx in zip(inputs, chosen, strict=True)],
        chosen,
        case.experts,
        **CASTS[case.cast],
    )
    outputs = [
        [_answer(e, owner * len(experts) + local) for local, e in enumerate(experts)]
        for owner, experts in enumerate(received)
    ]
    mine = inputs[rank]
    weights = mine.topk_weights[: len(chosen[rank])]
    return Step(mine, reference.combine(rank, outputs, received, chosen[rank], weights))


def assert_combined(actual: Tensor, step: Step, where: str) -> None:
    assert_same_bits(actual, step.combined, f"combined, {where}")


def _answer(sent: reference.ExpertRows, expert: int) -> Tensor:
    packed: Any = sent.rows if sent.scales is None else (sent.rows, sent.scales)
    return as_bfloat16(packed) * factor(expert)
