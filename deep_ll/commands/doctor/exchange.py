"""A real dispatch and combine among rank processes of this machine, against the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from deep_ll import reference
from deep_ll.buffer import Buffer
from deep_ll.commands.doctor.lines import BROKEN, OK, Line, Machine
from deep_ll.runtime.cuda import preflight, probe
from deep_ll.runtime.group import as_group
from deep_ll.testing import RankPool
from deep_ll.testing.compare import assert_received, assert_same_bits

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.untyped import Untyped

_TOKENS, _HIDDEN, _EXPERTS_PER_RANK, _TOP_K = 16, 256, 2, 2
_PATIENCE_S = 120.0
_CALL_S = 30.0


class Reached(NamedTuple):
    """How one rank reaches one peer."""

    peer: int
    kind: str
    reason: str


def exchange(num_ranks: int, device: str) -> tuple[Line, list[list[Reached]]]:
    """Runs it; how each rank reaches each peer, if it worked.

    Args:
        num_ranks: of processes.
        device: "cpu", or "cuda" for a GPU each.
    """
    name = f"{num_ranks} ranks, {device}"
    try:
        with RankPool(num_ranks) as pool:
            paths = pool.run(round_trip, device, timeout_s=_PATIENCE_S)
    except Exception as error:
        cause = error.__cause__ or error
        found = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        return Line(name, BROKEN, found, "see the broken lines above"), []
    return Line(name, OK, "dispatch and combine, FP8 and BF16: every byte as the oracle's"), paths


def device_for(num_ranks: int, machine: Machine) -> str:
    """GPUs if there is one for each rank and nothing that they need is missing."""
    if preflight.missing_of(machine.survey, nvshmem=True):
        return "cpu"
    return "cuda" if len(probe.look_elsewhere()["devices"]) >= num_ranks else "cpu"


def round_trip(group: object, device: str) -> list[Reached]:
    """What each rank does: dispatch and combine, compared; how it reaches the others.

    Raises:
        AssertionError: a byte is not as the oracle's.
    """
    ranks = as_group(group)
    if device == "cuda":
        torch_cuda: Untyped = torch.cuda
        torch_cuda.set_device(ranks.rank)
    num_experts = _EXPERTS_PER_RANK * ranks.size
    with Buffer(
        group,
        max_tokens_per_rank=_TOKENS,
        hidden=_HIDDEN,
        num_experts=num_experts,
        device=device,
        timeout_s=_CALL_S,
    ) as buffer:
        for use_fp8 in (True, False):
            _check(buffer, num_experts, use_fp8, device)
        return [Reached(*path) for path in buffer.paths()]


def _check(buffer: Buffer, num_experts: int, use_fp8: bool, device: str) -> None:
    """One round; experts answer with random rows."""
    gen = torch.Generator().manual_seed(int(use_fp8))
    ranks, rank = range(buffer.group_size), buffer.rank
    xs = [torch.randn(_TOKENS, _HIDDEN, generator=gen).bfloat16() for _ in ranks]
    routed = [torch.rand(_TOKENS, num_experts, generator=gen).topk(_TOP_K) for _ in ranks]
    indices, weights = [each.indices for each in routed], routed[rank].values
    received = reference.dispatch(xs, indices, num_experts, use_fp8=use_fp8)
    x, topk_idx = xs[rank].to(device), indices[rank].to(device)
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(
        x, topk_idx, _TOKENS, num_experts, use_fp8=use_fp8
    )
    rows = recv_x.cpu() if isinstance(recv_x, Tensor) else (recv_x[0].cpu(), recv_x[1].cpu())
    assert_received(rows, count.cpu(), [each.cpu() for each in handle[:2]], received[rank])

    outputs = [
        [torch.randn(len(e.src_info), _HIDDEN, generator=gen).bfloat16() for e in experts]
        for experts in received
    ]
    padded = torch.zeros(len(count), _TOKENS * len(ranks), _HIDDEN, dtype=torch.bfloat16)
    for local, answer in enumerate(outputs[rank]):
        padded[local, : len(answer)] = answer
    combined, _, _ = buffer.low_latency_combine(
        padded.to(device), topk_idx, weights.to(device), handle
    )
    expected = reference.combine(rank, outputs, received, indices[rank], weights)
    assert_same_bits(combined.cpu(), expected, "combined")
