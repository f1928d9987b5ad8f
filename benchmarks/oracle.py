"""The checks before and after timing, against deep_ll.reference."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.workload import Job, Shape, dequantized, expert_gains, expert_output
from deep_ll import reference

TOKENS_AT_ONCE = 8  # so that the float64 steps of the chain stay in a core's cache


def expected_received(job: Job, rank: int) -> reference.Received:
    """What dispatch must bring to `rank`."""
    ranks = range(job.shape.ep)
    sent = [job.inputs.sent(job.shape, source) for source in ranks]
    choices = list(job.inputs.topk_idx.tensor)
    return reference.receive(rank, sent, choices, job.shape.experts)


def expected_combined(job: Job, rank: int) -> Tensor:
    """What combine must return to `rank`: computed once, then shared by all contestants."""
    inputs = job.inputs
    combined = inputs.combined.tensor[rank]
    if not inputs.combined_known.tensor[rank]:
        rows, scales = inputs.sent(job.shape, rank)
        for first in range(0, job.shape.tokens, TOKENS_AT_ONCE):
            some = slice(first, first + TOKENS_AT_ONCE)
            tokens = dequantized(rows[some], None if scales is None else scales[some])
            choices, weights = inputs.topk_idx.tensor[rank], inputs.topk_weights.tensor[rank]
            combined[some] = _combine(job.shape, tokens, choices[some], weights[some])
        inputs.combined_known.tensor[rank] = 1
    return combined


def _combine(shape: Shape, tokens: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
    """The chain of reference.combine, for some tokens alone.

    That takes the outputs of all experts of all ranks, which would be gigabytes in every rank.
    """
    gains = expert_gains(shape)
    total = torch.zeros(tokens.shape)
    for k in range(shape.topk):
        answer = expert_output(tokens, gains[choices[:, k], None])
        total = reference.fma(weights[:, k, None], answer.float(), total)
    return reference.round_to_bf16(total)


def difference(actual: Tensor, expected: Tensor) -> float:
    """DeepEP's measure for results that round differently: 0 for equal, about 1e-6 for bfloat16."""
    a, b = actual.double() + 1, expected.double() + 1
    return 1 - 2 * float((a * b).sum() / (a * a + b * b).sum())
