"""What a rank does in a case: exchange with a Buffer, and compare with the oracle."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from cases import CASTS, Case, Inputs, make_inputs, make_outputs
from torch import Tensor

import deep_ll
from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits

NUM_NAN_ROWS = 8  # not all: that would touch memory which nobody uses


def make_buffer(group: Any, case: Case, **options: Any) -> deep_ll.Buffer:
    if case.by_bytes:
        num_bytes = deep_ll.Buffer.get_low_latency_rdma_size_hint(
            case.max_tokens, case.hidden, case.world, case.experts
        )
        return deep_ll.Buffer(group, 0, num_bytes, num_threads=case.threads, **options)
    return deep_ll.Buffer(
        group,
        max_tokens_per_rank=case.max_tokens,
        hidden=case.hidden,
        num_experts=case.experts,
        max_topk=case.topk,
        num_threads=case.threads,
        **options,
    )


def mode_options(mode: str) -> dict[str, bool]:
    return {"async_finish": mode == "event", "return_recv_hook": mode == "hook"}


def wait(mode: str, event: Any, hook: Any) -> None:
    if mode == "hook":
        hook()
    elif mode == "event":
        assert hook is None
        event.current_stream_wait()
    else:
        assert hook is None


def expect(case: Case, inputs: list[Inputs]) -> list[reference.Received]:
    return reference.dispatch(
        [i.x for i in inputs], [i.topk_idx for i in inputs], case.experts, **CASTS[case.cast]
    )


def padded(case: Case, outputs: list[Tensor], into: Tensor | None = None) -> Tensor:
    """The experts' outputs in combine's layout; behind them is NaN, which nobody may read."""
    if into is None:
        num_rows = case.world * case.max_tokens
        into = torch.empty(len(outputs), num_rows, case.hidden, dtype=torch.bfloat16)
    for rows, output in zip(into, outputs, strict=True):
        rows[: len(output)] = output
        rows[len(output) :][:NUM_NAN_ROWS] = torch.nan
    return into


def send(buf: deep_ll.Buffer, case: Case, mine: Inputs, stats: Tensor | None = None) -> Any:
    """Dispatch as the case says, without waiting."""
    return buf.low_latency_dispatch(
        mine.x,
        mine.topk_idx,
        case.max_tokens,
        case.experts,
        stats,
        **CASTS[case.cast],
        **mode_options(case.mode),
    )


def send_back(
    buf: deep_ll.Buffer, case: Case, mine: Inputs, outputs: list[Tensor], handle: Any
) -> Any:
    """Combine as the case says, without waiting."""
    view = buf.get_next_low_latency_combine_buffer(handle) if case.zero_copy else None
    out = torch.full_like(mine.x, torch.nan) if case.out else None
    combined, event, hook = buf.low_latency_combine(
        padded(case, outputs, view),
        mine.topk_idx,
        mine.topk_weights,
        handle,
        use_logfmt=case.logfmt,
        zero_copy=case.zero_copy,
        out=out,
        **mode_options(case.mode),
    )
    if out is not None:
        assert combined is out
    return combined, event, hook


class Truth(NamedTuple):
    """One round of one rank, as the oracle has it."""

    mine: Inputs
    received: reference.Received
    outputs: list[Tensor]  # of this rank's experts
    combined: Tensor


def truth_of(case: Case, round_idx: int, rank: int) -> Truth:
    """What a rank gives and has to get."""
    inputs = make_inputs(case, round_idx)
    mine, received = inputs[rank], expect(case, inputs)
    outputs = make_outputs(case, round_idx, received)
    answers = (outputs, received, mine.topk_idx, mine.topk_weights)
    combined = reference.combine(rank, *answers, use_logfmt=case.logfmt)
    return Truth(mine, received[rank], outputs[rank], combined)


def compare(
    buf: deep_ll.Buffer, case: Case, truth: Truth, stats: Tensor | None = None
) -> tuple[Any, Any]:
    """One dispatch and combine, compared; returns what dispatch returned and the oracle's view."""
    recv_x, recv_count, handle, event, hook = send(buf, case, truth.mine, stats)
    wait(case.mode, event, hook)
    assert_received(recv_x, recv_count, handle, truth.received)
    combined, event, hook = send_back(buf, case, truth.mine, truth.outputs, handle)
    wait(case.mode, event, hook)
    assert_same_bits(combined, truth.combined, "combined")
    return (recv_x, recv_count, handle), truth.received


def round_trip(
    buf: deep_ll.Buffer, case: Case, round_idx: int, stats: Tensor | None = None
) -> tuple[Any, Any]:
    """`compare` with the oracle's own view of the round."""
    return compare(buf, case, truth_of(case, round_idx, buf.rank), stats)


def all_rounds(buf: deep_ll.Buffer, case: Case) -> None:
    """All rounds of a case, with statistics, and results that live on."""
    stats = torch.full((len(case.experts_of(buf.rank)),), 100, dtype=torch.int32)
    total = stats.clone()
    previous: tuple[Any, Any] | None = None
    for round_idx in range(case.rounds):
        results, expected = round_trip(buf, case, round_idx, stats)
        total += results[1]
        assert_same_bits(stats, total, "stats")
        if previous is not None:  # a result lives until the second next dispatch
            assert_received(*previous[0], previous[1])
        previous = (results, expected)


def exchange(group: Any, case: Case) -> None:
    """All rounds of a case on one Buffer."""
    with make_buffer(group, case) as buf:
        assert buf.group_size == case.world
        all_rounds(buf, case)
