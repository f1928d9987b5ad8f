"""One rank's calls of one exchange, with tensors on a device that keep their addresses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from cases import Case, Inputs, make_inputs, make_outputs
from exchange import expect, make_buffer, mode_options, padded, send, wait
from torch import Tensor

import deep_ll
from deep_ll import reference
from deep_ll.runtime.group import as_group
from deep_ll.testing.compare import assert_received, assert_same_bits

TIMEOUT_S = 20.0  # of a kernel; a section has more


class Round(NamedTuple):
    """The inputs of all ranks, and what the oracle makes of them."""

    inputs: list[Inputs]
    received: list[reference.Received]
    outputs: list[list[Tensor]]
    combined: list[Tensor]


@lru_cache(maxsize=8)
def prepare(case: Case, round_idx: int) -> Round:
    """Made once for all ranks and ways to call; `plain()` makes cases that share it."""
    inputs = make_inputs(case, round_idx)
    received = expect(case, inputs)
    outputs = make_outputs(case, round_idx, received)
    combined = [
        reference.combine(rank, outputs, received, mine.topk_idx, mine.topk_weights)
        for rank, mine in enumerate(inputs)
    ]
    return Round(inputs, received, outputs, combined)


def open_buffer(group: Any, case: Case, **options: Any) -> deep_ll.Buffer:
    return make_buffer(group, case, **{"device": "cuda", "timeout_s": TIMEOUT_S, **options})


def meet(group: Any, device: Any) -> None:
    """All ranks are here, and what they put on their streams is done."""
    device.synchronize()
    as_group(group).all_gather(None)


class Batch:
    """The steps of an exchange; between `load` and `problems` nothing but the device works."""

    def __init__(self, buf: deep_ll.Buffer, device: Any, case: Case, first: Round) -> None:
        self.buf, self.device, self.case = buf, device, case
        self.mine = Inputs(*map(device.put, first.inputs[buf.rank]))
        self.answers = device.put(padded(case, first.outputs[buf.rank]))
        self.out = torch.empty_like(self.mine.x) if case.out else None
        self.round = first
        self.results: tuple[Any, ...] = ()
        self.waiting: tuple[Any, ...] = ()
        self.combined = self.mine.x

    def load(self, this: Round) -> None:
        """Other inputs in the same place."""
        rank, self.round = self.buf.rank, this
        for tensor, value in zip(self.mine, this.inputs[rank], strict=True):
            tensor.copy_(value)
        self.answers.copy_(padded(self.case, this.outputs[rank]))

    def dispatch(self, stats: Tensor | None = None) -> None:
        *results, event, hook = send(self.buf, self.case, self.mine, stats)
        self.results, self.waiting = tuple(results), (event, hook)

    def receive(self) -> None:
        wait(self.case.mode, *self.waiting)

    def combine(self, fill: bool = True) -> None:
        """Without `fill` the memory of a zero-copy combine is left as it is, for timing."""
        handle, source = self.results[2], self.answers
        if self.case.zero_copy:
            source = self.buf.get_next_low_latency_combine_buffer(handle)
            if fill:
                self.device.do(lambda: source.copy_(self.answers))
        combined, *waiting = self.buf.low_latency_combine(
            source,
            self.mine.topk_idx,
            self.mine.topk_weights,
            handle,
            zero_copy=self.case.zero_copy,
            out=self.out,
            **mode_options(self.case.mode),
        )
        self.combined, self.waiting = combined, tuple(waiting)

    def reduce(self) -> None:
        wait(self.case.mode, *self.waiting)

    def exchange(self) -> None:
        """All steps."""
        self.dispatch()
        self.receive()
        self.combine()
        self.reduce()

    def problems(self, with_received: bool = True) -> list[str]:
        """What differs from the oracle. The results of dispatch live until the second next one."""
        found = self._received_problem() if with_received else None
        return [text for text in (found, self._combined_problem()) if text is not None]

    def _received_problem(self) -> str | None:
        get, (recv_x, recv_count, handle) = self.device.get, self.results
        rows = tuple(map(get, recv_x)) if isinstance(recv_x, tuple) else get(recv_x)
        fields = get(handle[0]), get(handle[1])
        return _problem(
            lambda: assert_received(
                rows, get(recv_count), fields, self.round.received[self.buf.rank]
            ),
            self._where(),
        )

    def _combined_problem(self) -> str | None:
        combined, expected = self.device.get(self.combined), self.round.combined[self.buf.rank]
        return _problem(lambda: assert_same_bits(combined, expected, "combined"), self._where())

    def _where(self) -> str:
        return f"({self.case}) rank {self.buf.rank}"


def _problem(check: Any, where: str) -> str | None:
    """Returned, not raised: a rank that leaves would keep its peers waiting."""
    try:
        check()
    except AssertionError as error:
        return f"{where}: {error}"
    return None
