"""The checks before and after timing, against deep_ll.reference."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.workload import Job, dequantized, expert_gains, expert_output
from deep_ll import reference


def expected_received(job: Job, rank: int) -> reference.Received:
    """What dispatch must bring to `rank`."""
    ranks = range(job.shape.ep)
    sent = [job.inputs.sent(job.shape, source) for source in ranks]
    choices = list(job.inputs.topk_idx.tensor)
    return reference.receive(rank, sent, choices, job.shape.experts)


def expected_combined(job: Job, rank: int) -> Tensor:
    """What combine must return to `rank`.

    The chain of reference.combine on this rank's tokens alone: the outputs of all experts of all
    ranks, which that takes, would be gigabytes in every rank.
    """
    inputs = dequantized(*job.inputs.sent(job.shape, rank))
    choices, weights = job.inputs.topk_idx.tensor[rank], job.inputs.topk_weights.tensor[rank]
    gains = expert_gains(job.shape)
    total = torch.zeros(inputs.shape)
    for k in range(job.shape.topk):
        answer = expert_output(inputs, gains[choices[:, k], None])
        total = reference.fma(weights[:, k, None], answer.float(), total)
    return reference.round_to_bf16(total)


def difference(actual: Tensor, expected: Tensor) -> float:
    """DeepEP's measure for results that round differently: 0 for equal, about 1e-6 for bfloat16."""
    a, b = actual.double() + 1, expected.double() + 1
    return 1 - 2 * float((a * b).sum() / (a * a + b * b).sum())
