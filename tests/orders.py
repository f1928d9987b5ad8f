"""What the ranks of test_order.py do: calls in other orders than dispatch, combine, dispatch."""

from typing import Any

import torch
from cases import Case, make_inputs, make_outputs
from exchange import expect, make_buffer, mode_options, padded, round_trip, send, send_back, wait

from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits


class Batch:
    """One micro-batch: its calls, and what they must give."""

    def __init__(self, buf: Any, case: Case, round_idx: int) -> None:
        inputs = make_inputs(case, round_idx)
        self.buf, self.case, self.mine = buf, case, inputs[buf.rank]
        self.received = expect(case, inputs)
        self.outputs = make_outputs(case, round_idx, self.received)

    def dispatch(self) -> None:
        *self.results, event, hook = send(self.buf, self.case, self.mine)
        self.waiting = (event, hook)

    def receive(self) -> None:
        wait(self.case.mode, *self.waiting)
        self.check_received()

    def check_received(self) -> None:
        assert_received(*self.results, self.received[self.buf.rank])

    def combine(self) -> None:
        outputs, handle = self.outputs[self.buf.rank], self.results[2]
        self.combined, *self.waiting = send_back(self.buf, self.case, self.mine, outputs, handle)

    def reduce(self) -> None:
        wait(self.case.mode, *self.waiting)
        rank, topk_idx, weights = self.buf.rank, self.mine.topk_idx, self.mine.topk_weights
        expected = reference.combine(rank, self.outputs, self.received, topk_idx, weights)
        assert_same_bits(self.combined, expected, "combined")


def run_steps(group: Any, case: Case, steps: list[tuple[str, int]]) -> None:
    """Runs ``(method, batch)`` steps three times, then ordinary rounds."""
    with make_buffer(group, case) as buf:
        for repeat in range(3):
            batches = [Batch(buf, case, 2 * repeat + i) for i in range(2)]
            for method, batch in steps:
                getattr(batches[batch], method)()
        for round_idx in range(10, 13):
            round_trip(buf, case, round_idx)


def dispatch_only(group: Any, case: Case) -> None:
    with make_buffer(group, case) as buf:
        before = None
        for round_idx in range(7):
            batch = Batch(buf, case, round_idx)
            batch.dispatch()
            batch.receive()
            if before is not None:
                before.check_received()
            before = batch
        round_trip(buf, case, 7)


def combine_twice(group: Any, case: Case) -> None:
    with make_buffer(group, case) as buf:
        batch = Batch(buf, case, 0)
        batch.dispatch()
        batch.receive()
        for _ in range(2):
            batch.combine()
            batch.reduce()
            # Other answers of the experts, the same handle.
            batch.outputs = make_outputs(case, 1, batch.received)
        round_trip(buf, case, 2)


def change_shapes(group: Any, largest: Case, cases: list[Case]) -> None:
    with make_buffer(group, largest) as buf:
        for round_idx, case in enumerate([*cases, largest, *reversed(cases)]):
            round_trip(buf, case, round_idx)


def several_buffers(group: Any, cases: list[Case]) -> None:
    bufs = [make_buffer(group, case) for case in cases]
    for round_idx in range(3):
        for buf, case in zip(bufs, cases, strict=True):
            round_trip(buf, case, round_idx)
    bufs[0].destroy()
    for buf, case in zip(bufs[1:], cases[1:], strict=True):
        round_trip(buf, case, 3)
        buf.destroy()
    with make_buffer(group, cases[0]) as buf:
        round_trip(buf, cases[0], 4)


def zero_copy_ignores_x(group: Any, case: Case) -> None:
    """As in DeepEP, the rows count that were written to the buffer, whatever x is."""
    with make_buffer(group, case) as buf:
        batch = Batch(buf, case, 0)
        batch.dispatch()
        batch.receive()
        handle, mine = batch.results[2], batch.mine
        view = buf.get_next_low_latency_combine_buffer(handle)
        padded(case, batch.outputs[buf.rank], view)
        batch.combined, *batch.waiting = buf.low_latency_combine(
            torch.ones_like(view),
            mine.topk_idx,
            mine.topk_weights,
            handle,
            zero_copy=True,
            **mode_options(case.mode),
        )
        batch.reduce()


def mask_after_dispatch(group: Any, case: Case) -> None:
    """Choices may become -1 between dispatch and combine: their answers are left out."""
    with make_buffer(group, case) as buf:
        for round_idx in range(3):
            batch = Batch(buf, case, round_idx)
            batch.dispatch()
            batch.receive()
            masked = batch.mine.topk_idx.clone()
            masked[:, round_idx] = -1
            batch.mine = batch.mine._replace(topk_idx=masked)
            batch.combine()
            batch.reduce()


def own_deadlines(group: Any, case: Case) -> tuple[int, int]:
    """How many options a session keeps, before and after many calls with deadlines of their own."""
    inputs = make_inputs(case, 0)[group.rank]
    sizes = (case.max_tokens, case.experts)
    with make_buffer(group, case) as buf:
        before = len(buf._session._options)
        for tenths in range(100, 120):
            buf.low_latency_dispatch(inputs.x, inputs.topk_idx, *sizes, timeout_s=tenths / 10)
        return before, len(buf._session._options)
