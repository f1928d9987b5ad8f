"""What test_gpu_launches.py runs: the launches of calls, and the bytes they are given."""

import gc
import struct
import weakref
from typing import Any

import torch
from cases import Case, Inputs, make_inputs, make_outputs
from exchange import expect, padded, round_trip, send, send_back, wait
from fake_cuda.driver import Launch

from deep_ll import _native, kernels
from deep_ll.runtime.cuda import calls
from twin import world
from twin.cases import kernel_of, make_buffer, on_ranks, own_launches

SEND, RECEIVE = 1, 2


class Calls:
    """One rank's calls, and the bytes that their launches must have."""

    def __init__(self, buf: Any, case: Case, seed: int = 0) -> None:
        inputs = make_inputs(case, seed)
        self.buf, self.case, self.mine = buf, case, inputs[buf.rank]
        self.received = expect(case, inputs)
        self.outputs = padded(case, make_outputs(case, seed, self.received)[buf.rank])
        self.out = torch.empty_like(self.mine.x)
        self.stats = torch.zeros(case.experts // case.world, dtype=torch.int32)

    def dispatch(self) -> Any:
        *_, self.handle, event, hook = send(self.buf, self.case, self.mine, self.stats)
        return event, hook

    def combine(self) -> Any:
        mine, mode = self.mine, self.case.mode
        _, event, hook = self.buf.low_latency_combine(
            self.outputs,
            mine.topk_idx,
            mine.topk_weights,
            self.handle,
            out=self.out,
            async_finish=mode == "event",
            return_recv_hook=mode == "hook",
        )
        return event, hook

    def bytes_of(self, halves: int) -> tuple[bytes, bytes]:
        """Of the dispatch and the combine of this handle."""
        session, this, mine = self.buf._session, self.handle.round, self.mine
        kind, slot, wide = this.kind, this.epoch % 2, mine.topk_idx.dtype == torch.int64
        indices = mine.topk_idx.data_ptr()
        counts = (kind.counts[slot].recv_count, kind.counts[slot].layout_range)
        addresses = [tensor.data_ptr() for tensor in counts]
        tokens = len(mine.x)
        batch = _native.Batch(mine.x.data_ptr(), tokens, *addresses, slot, indices, wide)
        memory = session._memory.kinds[kind.sizes]
        ledger = memory.ledgers[slot].data_ptr()
        stats = self.stats.data_ptr()
        native = session.launches
        dispatch = native.dispatch(kind.shape, ledger, batch, True, stats, halves)
        combine_slot = session.combined % 2
        total = _native.Sum(
            memory.choices[combine_slot].data_ptr(),
            mine.topk_weights.data_ptr(),
            self.out.data_ptr(),
            tokens,
            indices,
            wide,
        )
        answer = _native.Answer(slot, combine_slot, False)
        source = self.outputs.data_ptr()
        combine = native.combine(kind.shape, ledger, answer, source, total, halves)
        return bytes(dispatch), bytes(combine)


def check_form(launch: Launch, case: Case, tier: str, num_sms: int) -> None:
    """What all launches have in common."""
    shape = _native.Shape(case.world, 0, case.experts, case.max_tokens, case.hidden, case.topk, 1)
    assert launch.grid == (num_sms, 1, 1)
    assert launch.block == (512, 1, 1)
    assert launch.shared_bytes == _native.Launches.shared_bytes(shape, kernels.BLOCK_WARPS)
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


def no_allocation(group: Any, case: Case) -> None:
    """After the first round a call allocates nothing and loads nothing."""
    with make_buffer(group, case) as buf:
        layer = Calls(buf, case)
        for _ in range(2):
            exchange_once(layer)
        group.barrier()
        fake, made = world.enter(), (torch.empty, torch.zeros)
        counts = (world.TwinDevice.num_allocations, fake.count("libraries"))
        group.barrier()
        torch.empty = torch.zeros = refuse
        try:
            for _ in range(3):
                exchange_once(layer)
        finally:
            torch.empty, torch.zeros = made
        group.barrier()
        assert counts == (world.TwinDevice.num_allocations, fake.count("libraries"))


def exchange_once(layer: Calls) -> None:
    wait(layer.case.mode, *layer.dispatch())
    wait(layer.case.mode, *layer.combine())


def refuse(*_args: object, **_options: object) -> None:
    raise AssertionError("memory was allocated in a call")


def lifetimes(group: Any, case: Case) -> None:
    """A hook keeps what its launch will use, and nothing else; until it was called."""
    with make_buffer(group, case) as buf:
        layer = Calls(buf, case)
        _, receive = layer.dispatch()
        mine, layer.mine = layer.mine, Inputs(*(t.clone() for t in layer.mine))
        x, stats = weakref.ref(mine.x), weakref.ref(layer.stats)
        del mine, layer.stats
        gc.collect()
        assert (x() is None, stats() is None) == (True, False)
        receive()
        gc.collect()
        assert stats() is None
        _, receive = layer.combine()
        refs = [weakref.ref(t) for t in (layer.outputs, layer.mine.topk_weights, layer.out)]
        del layer.outputs, layer.mine, layer.out
        gc.collect()
        assert [ref() is None for ref in refs] == [True, False, False]
        receive()
        gc.collect()
        assert all(ref() is None for ref in refs)


def run(name: str, case: Case, *args: Any) -> None:
    on_ranks(case.world, globals()[name], case, *args)
