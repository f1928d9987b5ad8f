"""What test_gpu_launches.py runs: the launches of calls, and the bytes they are given."""

import io
import struct
import time
from typing import Any

import pytest
import torch
from cases import Case, make_inputs, make_outputs
from exchange import expect, mode_options, round_trip, send, send_back, wait
from fake_cuda.driver import Launch

import deep_ll
from deep_ll import _native
from deep_ll.runtime.cuda import calls
from twin import world
from twin.cases import kernel_of, make_buffer, on_ranks, own_launches
from twin.layer import RECEIVE, SEND, Calls


def check_form(launch: Launch, case: Case, tier: str, num_sms: int) -> None:
    """What all launches have in common."""
    shape = _native.Shape(case.world, 0, case.experts, case.max_tokens, case.hidden, case.topk, 1)
    assert launch.grid == (num_sms, 1, 1)
    assert launch.block == (512, 1, 1)
    assert launch.shared_bytes == _native.Launches.shared_bytes(shape, 16)
    assert launch.attributes == ()
    assert launch.device == 0
    assert kernel_of(launch)[0] == tier


def plain(group: Any, case: Case, tier: str) -> None:
    """Each call is one launch on the caller's stream, and all of its bytes are as they must be."""
    before = len(own_launches())
    with make_buffer(group, case, num_sms=7) as buf:
        params = []
        for _ in range(3):
            layer = Calls(buf, case)
            layer.dispatch()
            layer.combine()
            dispatch, combine = own_launches()[before:]
            before += 2
            assert [kernel_of(each)[1] for each in (dispatch, combine)] == ["dispatch", "combine"]
            assert (dispatch.params, combine.params) == layer.bytes_of(SEND | RECEIVE)
            for each in (dispatch, combine):
                check_form(each, case, tier, 7)
                assert each.stream == world.own_stream()
            params.append(dispatch.params)
        assert len(set(params)) == 3


def slots_take_turns(group: Any, case: Case) -> None:
    """The same tensors again: only what is of the slot changes, and comes back."""
    with make_buffer(group, case) as buf:
        layer, params = Calls(buf, case), []
        for _ in range(4):
            layer.dispatch()
            layer.combine()
            params.append([each.params for each in own_launches()[-2:]])
        assert params[0] == params[2]
        assert params[1] == params[3]
        assert params[0][0] != params[1][0]
        assert params[0][1] != params[1][1]


def hook(group: Any, case: Case) -> None:
    """Two launches; the second one on the first one's stream, wherever the hook is called."""
    own, other = world.own_stream(), world.own_stream() + world.OTHER
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        layer, before = Calls(buf, case), len(own_launches())
        for part, call in enumerate((layer.dispatch, layer.combine)):
            _, receive = call()
            with world.on_stream(other):
                receive()
            sent, received, joined = own_launches()[before:]
            before += 3
            assert sent.stream == received.stream == own
            assert sent.params == layer.bytes_of(SEND)[part]
            assert received.params == layer.bytes_of(RECEIVE)[part]
            assert joined.stream == other
            assert waits_for(joined)[0] == own


def waits_for(launch: Launch) -> tuple[int, int]:
    """The stream that a wait waits for, and how many launches there had been."""
    assert launch.name == "wait"
    stream, count = struct.unpack("QQ", launch.params)
    return stream, count


def event(group: Any, case: Case) -> None:
    """On the side stream, which waits for the caller's; the event waits for its operation alone."""
    own, side = world.own_stream(), world.own_stream() + world.SIDE
    with make_buffer(group, case) as buf:
        Calls(buf, case).dispatch()[0].current_stream_wait()
        first, second = Calls(buf, case), Calls(buf, case, 1)
        before = len(own_launches())
        one = first.dispatch()[0]
        begins, dispatch = own_launches()[before:]
        assert (begins.stream, waits_for(begins)[0]) == (side, own)
        assert dispatch.stream == side
        assert dispatch.params == first.bytes_of(SEND | RECEIVE)[0]
        kept = buf._session._streams._side.kept[-3:]
        assert kept == [t.data_ptr() for t in (first.mine.x, first.mine.topk_idx, first.stats)]
        del first.handle
        second.dispatch()
        one.current_stream_wait()
        *_, ends = own_launches()
        assert (ends.stream, waits_for(ends)[0]) == (own, side)
        numbers = [launch.params for launch in world.enter().launches()]
        assert waits_for(ends)[1] <= numbers.index(second.bytes_of(SEND | RECEIVE)[0])


def streams(group: Any, case: Case) -> None:
    """A call on another stream than the last one waits for it."""
    own, other = world.own_stream(), world.own_stream() + world.OTHER
    plain_case = Case(**{**case.__dict__, "mode": "plain"})
    with make_buffer(group, case) as buf:
        layer = Calls(buf, plain_case)
        before = len(own_launches())
        layer.dispatch()
        with world.on_stream(other):
            layer.combine()
            layer.dispatch()
        Calls(buf, case).dispatch()  # behind an event, and nobody waits for it
        del layer.handle
        Calls(buf, plain_case, 1).dispatch()
        found = [
            (each.stream, waits_for(each)[0] if each.name == "wait" else kernel_of(each)[1])
            for each in own_launches()[before:]
        ]
        side = own + world.SIDE
        assert found == [
            (own, "dispatch"),
            (other, own),
            (other, "combine"),
            (other, "dispatch"),
            (side, own),
            (side, other),
            (side, "dispatch"),
            (own, side),
            (own, "dispatch"),
        ]


def credit(group: Any, case: Case) -> None:
    """One block waits for the memory of a combine, on the caller's stream."""
    with make_buffer(group, case) as buf:
        inputs = make_inputs(case, 0)
        *_, handle, _, _ = send(buf, case, inputs[buf.rank])
        outputs = make_outputs(case, 0, expect(case, inputs))[buf.rank]
        before = len(own_launches())
        send_back(buf, case, inputs[buf.rank], outputs, handle)
        waited, combine = own_launches()[before:]
        assert kernel_of(waited) == ("any", "credit")
        assert kernel_of(combine) == ("any", "combine")
        assert waited.grid == (1, 1, 1)
        assert waited.stream == world.own_stream()


def other_current_device(group: Any, case: Case) -> None:
    """Launches and events go to the buffer's GPU, whichever is current."""
    before = len(own_launches())
    with make_buffer(group, case) as buf, calls.current(calls.primary_context(1)):
        for round_idx in range(2):
            round_trip(buf, case, round_idx)
        assert {each.device for each in own_launches()[before:]} == {0}
        assert calls.bindings().cuCtxGetCurrent()[1] == calls.primary_context(1)


def waits(group: Any, case: Case) -> None:
    """Tensors of the caller grow by what a rank waited for a late one, and are kept until then."""
    late_s = 0.05
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        layer = Calls(buf, case)
        costs = [torch.zeros(case.world, dtype=torch.int64) for _ in range(2)]
        options = mode_options(case.mode)
        mine = layer.mine
        group.barrier()
        time.sleep(late_s * buf.rank)
        _, _, handle, event, hook = buf.low_latency_dispatch(
            mine.x,
            mine.topk_idx,
            case.max_tokens,
            case.experts,
            dispatch_wait_recv_cost_stats=costs[0],
            **options,
        )
        wait(case.mode, event, hook)
        group.barrier()
        time.sleep(late_s * buf.rank)
        _, event, hook = buf.low_latency_combine(
            layer.outputs,
            mine.topk_idx,
            mine.topk_weights,
            handle,
            combine_wait_recv_cost_stats=costs[1],
            **options,
        )[-3:]
        wait(case.mode, event, hook)
        if case.mode == "event":
            kept = buf._session._streams._side.kept
            assert {cost.data_ptr() for cost in costs} <= set(kept)
        for cost in costs:
            assert cost[buf.rank] == 0
            assert buf.rank == 1 or cost[1] >= 0.5e9 * late_s, costs
        told = io.StringIO()
        buf.dump(told)
        assert "launched dispatch #2 and combine #2; no kernel has given up" in told.getvalue()
        with pytest.raises(deep_ll.OrderError, match="dispatch_wait_recv_cost_stats"):
            buf.stats()


def run(name: str, case: Case, *args: Any) -> list[Any]:
    return on_ranks(case.world, globals()[name], case, *args)
