"""What test_gpu_trouble.py runs: bad choices, ranks that do not come or disagree."""

from typing import Any

import torch
from cases import Case, Inputs, make_inputs, make_outputs
from exchange import expect, padded, round_trip, send
from torch import Tensor

from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits
from twin import world
from twin.cases import make_buffer, on_ranks
from twin.graph_work import error_of
from twin.graphs import Graph


def spoil(topk_idx: Tensor, what: str, num_experts: int) -> tuple[Tensor, int]:
    """Choices of which [1, 1] is bad, and its value."""
    bad = topk_idx.clone()
    values = {"too large": num_experts, "negative": -2, "repeated": int(bad[1, 0])}
    bad[1, 1] = values[what]
    return bad, values[what]


def bad_dispatch(group: Any, case: Case, what: str) -> list[str]:
    """Rank 0 passes a bad choice; all go on as if it were -1, and rank 0 hears of it."""
    texts = []
    with make_buffer(group, case, timeout_s=10) as buf:
        inputs = make_inputs(case, 0)
        bad, value = spoil(inputs[0].topk_idx, what, case.experts)
        cleaned = bad.clone()
        cleaned[1, 1] = -1
        inputs[0] = inputs[0]._replace(topk_idx=cleaned)
        mine, received = inputs[buf.rank], expect(case, inputs)
        given = mine if buf.rank else mine._replace(topk_idx=bad)
        *results, event, hook = send(buf, case, given)
        _finish(event, hook)
        assert_received(*results, received[buf.rank])
        outputs = make_outputs(case, 0, received)
        for _ in range(2):  # the same choices again: they are as bad here
            call = lambda: _combine(buf, case, outputs, given, results[2])  # noqa: E731
            if buf.rank == 0:
                texts.append(error_of(call))
            combined = call()
            expected = reference.combine(
                buf.rank, outputs, received, mine.topk_idx, mine.topk_weights
            )
            assert_same_bits(combined, expected, "combined")
        if buf.rank == 0:
            texts.append(error_of(lambda: send(buf, case, mine)))
        for round_idx in range(1, 4):
            round_trip(buf, case, round_idx)
    return [text.replace(f" is {value}:", " is VALUE:") for text in texts]


def _combine(buf: Any, case: Case, outputs: Any, given: Inputs, handle: Any) -> Tensor:
    combined, event, hook = buf.low_latency_combine(
        padded(case, outputs[buf.rank]),
        given.topk_idx,
        given.topk_weights,
        handle,
        async_finish=case.mode == "event",
        return_recv_hook=case.mode == "hook",
    )
    _finish(event, hook)
    return combined


def _finish(event: Any, hook: Any) -> None:
    event.current_stream_wait()
    if hook is not None:
        hook()


def not_dispatched(group: Any, case: Case) -> list[str]:
    """Rank 0 combines with an expert that it did not send to."""
    with make_buffer(group, case, timeout_s=10) as buf:
        inputs = make_inputs(case, 0)
        mine, received = inputs[buf.rank], expect(case, inputs)
        *results, event, hook = send(buf, case, mine)
        _finish(event, hook)
        outputs, given, masked = make_outputs(case, 0, received), mine, mine.topk_idx.clone()
        if buf.rank == 0:
            others = set(range(case.experts)) - set(mine.topk_idx[2].tolist())
            given = mine._replace(topk_idx=mine.topk_idx.clone())
            given.topk_idx[2, 0], masked[2, 0] = others.pop(), -1
        combined = _combine(buf, case, outputs, given, results[2])
        expected = reference.combine(buf.rank, outputs, received, masked, mine.topk_weights)
        assert_same_bits(combined, expected, "combined")
        text = error_of(lambda: send(buf, case, mine)) if buf.rank == 0 else ""
        round_trip(buf, case, 1)
    return [text]


def nobody_comes(group: Any, case: Case, phase: str) -> list[str]:
    """Rank 1 stops before `phase`; what rank 0 hears, call by call."""
    buf = make_buffer(group, case, timeout_s=0.3 if phase == "counts" else 1.0)
    mine, texts = make_inputs(case, 1)[buf.rank], []
    group.barrier()
    if phase == "outputs":
        *_, handle, event, hook = send(buf, case, mine)
        _finish(event, hook)
        outputs = make_outputs(case, 1, expect(case, make_inputs(case, 1)))
    if buf.rank == 0:
        if phase == "outputs":
            texts.append(error_of(lambda: _combine(buf, case, outputs, mine, handle)))
        else:
            texts.append(error_of(lambda: _finish(*send(buf, case, mine)[3:])))
        texts += [error_of(lambda: send(buf, case, mine)) for _ in range(2)]
        clean = (case.max_tokens, case.hidden, case.experts)
        texts.append(error_of(lambda: buf.clean_low_latency_buffer(*clean)))
    group.barrier()
    buf.destroy()
    buf.destroy()
    texts.append(error_of(lambda: send(buf, case, mine)))
    return texts


def disagree(group: Any, case: Case, about: str) -> list[str]:
    """What each rank hears at the call after the one in which they differed."""
    buf = make_buffer(group, case, timeout_s=10)
    round_trip(buf, case, 0)
    mine, other = make_inputs(case, 1)[buf.rank], {}
    if about == "slot" and buf.rank == 1:
        with Graph().capture():  # recorded and never replayed
            send(buf, case, mine)
    if buf.rank == 1:
        changes = {"hidden": {"hidden": 128}, "top-k": {"topk": 1}}
        other = changes.get(about, {})
    changed = Case(**{**case.__dict__, **other})
    handle = send(buf, changed, make_inputs(changed, 1)[buf.rank])[2]
    if about == "zero_copy":
        x = torch.zeros(case.experts // 2, 2 * case.max_tokens, case.hidden, dtype=torch.bfloat16)
        if buf.rank == 1:
            buf.get_next_low_latency_combine_buffer(handle)
        args = (x, mine.topk_idx, mine.topk_weights, handle)
        buf.low_latency_combine(*args, zero_copy=buf.rank == 1)
    texts = [error_of(lambda: send(buf, case, mine)) for _ in range(2)]
    group.barrier()
    buf.destroy()
    return texts


def refused(group: Any, case: Case) -> list[str]:
    """Calls that cannot be, and that a good one works afterwards."""
    texts = [error_of(lambda: make_buffer(group, case, num_sms=0))]
    with make_buffer(group, case) as buf:
        mine = make_inputs(case, 0)[buf.rank]
        with world.on_stream(0):
            texts.append(error_of(lambda: send(buf, case, mine)))
        for field in ("x", "topk_idx"):
            elsewhere = mine._replace(**{field: getattr(mine, field).to("meta")})
            texts.append(error_of(lambda bad=elsewhere: send(buf, case, bad)))
        round_trip(buf, case, 0)
    return texts


def run(name: str, case: Case, *args: Any) -> list[Any]:
    return on_ranks(case.world, globals()[name], case, *args)
