"""What the ranks of test_shrink.py do: some die or stop somewhere, the others go on and compare
every byte with the oracle, in which the masked are absent."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from cases import CASTS, Case, Inputs, make_inputs
from exchange import make_buffer, mode_options, wait
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

import deep_ll
from deep_ll import _native, reference
from deep_ll.testing.compare import assert_received, assert_same_bits
from deep_ll.testing.rank_process import _die_with_parent

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
WARMING_S = 30.0
FEW = Case(world=8, experts=16, tokens=4, max_tokens=4, hidden=128, topk=4)


class Fault(NamedTuple):
    """What a rank does to itself: at the `visit`-th time that it passes `point` in a round, at the
    latest when the round is over."""

    rank: int
    round_idx: int
    point: str  # csrc/team/host/faults.hpp
    how: str = "kill"
    visit: int = 1

    def __str__(self) -> str:
        return f"{self.rank}:{self.point}:{self.how}@{self.round_idx}.{self.visit}"


class Told(NamedTuple):
    """What a rank says at the end."""

    masked: list[int]
    error: str  # why it left; "": it did not
    longest_s: float  # of its calls
    history: list[list[list[int]]]  # who was masked in each round after dispatch, combine, clean


@dataclass
class Seen:
    """What one round gave a rank: copies, to be compared when nobody waits."""

    received: tuple[Any, ...] = ()
    masked: list[list[int]] = field(default_factory=list)  # after dispatch, combine, clean
    combined: Tensor = field(default_factory=lambda: torch.empty(0))


class Survivor:
    """One rank's rounds."""

    def __init__(self, buf: deep_ll.Buffer, case: Case, faults: list[Fault]) -> None:
        self.buf, self.case = buf, case
        self.faults = {f.round_idx: f for f in faults if f.rank == buf.rank}
        self.inputs = [make_inputs(case, i) for i in range(case.rounds)]
        self.seen: list[Seen] = []
        self.longest_s = 0.0
        self.timeout_s: float | None = None  # of a call
        self.status = torch.zeros(case.world, dtype=torch.int32)

    def masked(self) -> list[int]:
        self.buf.low_latency_query_mask_buffer(self.status)
        return self.status.nonzero().flatten().tolist()

    def timed(self, call: Any, *args: Any, **options: Any) -> Any:
        start = time.monotonic()
        result = call(*args, **options)
        self.longest_s = max(self.longest_s, time.monotonic() - start)
        return result

    def warm(self) -> None:
        """A first exchange, in which nobody fails, however long it takes."""
        self.timeout_s = WARMING_S
        self.exchange(self.inputs[0][self.buf.rank], Seen())
        self.timeout_s, self.longest_s = None, 0.0

    def run(self) -> None:
        for round_idx in range(self.case.rounds):
            fault = self.faults.get(round_idx)
            if fault is not None:
                _native.set_fault(fault.point, SIGNALS[fault.how], fault.visit)
            self.seen.append(Seen())
            self.exchange(self.inputs[round_idx][self.buf.rank], self.seen[-1])
            sizes = (self.case.max_tokens, self.case.hidden, self.case.experts)
            self.timed(self.buf.clean_low_latency_buffer, *sizes)
            self.seen[-1].masked.append(self.masked())
            if fault is not None:
                os.kill(os.getpid(), SIGNALS[fault.how])

    def exchange(self, mine: Inputs, seen: Seen) -> None:
        case, mode = self.case, {**mode_options(self.case.mode), "timeout_s": self.timeout_s}
        sizes = (case.max_tokens, case.experts)
        (x, scales), count, handle, *waiting = self.timed(
            self.buf.low_latency_dispatch, mine.x, mine.topk_idx, *sizes, **CASTS[case.cast], **mode
        )
        self.timed(wait, case.mode, *waiting)
        seen.masked.append(self.masked())
        kept = (handle.src_info.clone(), handle.layout_range.clone())
        seen.received = ((x.clone(), scales.clone()), count.clone(), kept)
        take = self.buf.get_next_low_latency_combine_buffer
        first = self.buf.rank * len(x)
        outputs = torch.empty(x.shape).bfloat16()
        if case.zero_copy:
            outputs = self.timed(take, handle, timeout_s=self.timeout_s)
        for local, (rows, factors, number) in enumerate(zip(x, scales, count, strict=True)):
            outputs[local, :number] = answer(rows[:number], factors[:number], first + local)
        seen.combined, *waiting = self.timed(
            self.buf.low_latency_combine,
            outputs,
            mine.topk_idx,
            mine.topk_weights,
            handle,
            zero_copy=case.zero_copy,
            **mode,
        )
        self.timed(wait, case.mode, *waiting)
        seen.masked.append(self.masked())

    def check(self) -> None:
        for inputs, seen in zip(self.inputs, self.seen, strict=True):
            if seen.masked:
                self.check_received(inputs, seen)
            if len(seen.masked) > 1:
                self.check_combined(inputs, seen)

    def expected(self, inputs: list[Inputs], masked: list[int]) -> list[reference.Received]:
        choices = [
            torch.full_like(one.topk_idx, -1) if rank in masked else one.topk_idx
            for rank, one in enumerate(inputs)
        ]
        cast = CASTS[self.case.cast]
        return reference.dispatch([i.x for i in inputs], choices, self.case.experts, **cast)

    def check_received(self, inputs: list[Inputs], seen: Seen) -> None:
        assert_received(*seen.received, self.expected(inputs, seen.masked[0])[self.buf.rank])

    def check_combined(self, inputs: list[Inputs], seen: Seen) -> None:
        received, mine = self.expected(inputs, []), inputs[self.buf.rank]
        num_local = self.case.experts // self.case.world
        outputs = [
            [
                answer(rows.rows, rows.scales, rank * num_local + local)
                for local, rows in enumerate(experts)
            ]
            for rank, experts in enumerate(received)
        ]
        gone = torch.isin(mine.topk_idx // num_local, torch.tensor(seen.masked[1]))
        choices = mine.topk_idx.masked_fill(gone & (mine.topk_idx >= 0), -1)
        wanted = reference.combine(self.buf.rank, outputs, received, choices, mine.topk_weights)
        assert_same_bits(seen.combined, wanted, "combined")


def answer(rows: Tensor, scales: Tensor | None, expert: int) -> Tensor:
    """What an expert makes of rows: of their content alone, wherever they lie."""
    assert scales is not None
    return (reference.dequantize(rows, scales) * (expert + 1)).bfloat16()


class Run(NamedTuple):
    """What all ranks do together. `options`: of the buffer."""

    case: Case
    faults: list[Fault]
    timeout_s: float
    options: dict[str, Any]

    def victims(self, how: str = "") -> set[int]:
        """Who fails, in this way or any."""
        return {fault.rank for fault in self.faults if how in ("", fault.how)}


def serve(rank: int, port: int, conn: Connection) -> None:
    """Takes part in runs, each over a group of its own, until the pipe is closed."""
    _die_with_parent()
    torch.set_num_threads(1)
    root = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    while True:
        try:
            number, run = conn.recv()
        except EOFError:
            return
        group = deep_ll.StoreGroup(root, rank, run.case.world, generation=number)
        try:
            conn.send(survive(group, PrefixStore(str(number), root), run))
        except BaseException:
            conn.send(traceback.format_exc())


def survive(group: deep_ll.StoreGroup, store: Store, run: Run) -> Told:
    """All rounds; then those who were stopped go on, and must harm nobody."""
    _native.set_fault("", 0, 0)
    pids = group.all_gather(os.getpid())
    options = {"enable_shrink": True, "timeout_s": run.timeout_s, **run.options}
    with make_buffer(group, run.case, **options) as buf:
        one = Survivor(buf, run.case, run.faults)
        one.warm()
        group.all_gather(None)
        error = ""
        try:
            one.run()
        except deep_ll.PeerError as left:
            error = str(left)
        if group.rank in run.victims():
            store.set(f"left {group.rank}", "")
        else:
            await_survivors(store, run.case.world - len(run.victims()))
            check_no_harm(buf, [(rank, pids[rank]) for rank in run.victims("stop")], store)
            one.check()
        history = [seen.masked for seen in one.seen]
        return Told([] if error else one.masked(), error, one.longest_s, history)


def await_survivors(store: Store, number: int) -> None:
    store.add("through", 1)
    while store.add("through", 0) < number:
        time.sleep(0.01)


def check_no_harm(buf: deep_ll.Buffer, stopped: list[tuple[int, int]], store: Store) -> None:
    """Ranks that were masked and go on write no rows. `stopped`: with their processes."""
    session = buf._session
    assert session is not None
    rows = session.heap.view(0, torch.uint8, session.heap.num_bytes)[session.window.recv.offset :]
    before = rows.clone()
    for rank, pid in stopped:
        os.kill(pid, signal.SIGCONT)
        store.wait([f"left {rank}"])
    assert torch.equal(before, rows)


def with_rounds(case: Case, faults: list[Fault]) -> Case:
    """Two rounds more than there are faults in."""
    return replace(case, rounds=max(fault.round_idx for fault in faults) + 3)


POINTS = (
    *("count", "announce", "announce.peer", "place", "place.peer", "send", "send.row"),
    *("deliver", "deliver.peer", "await_rows", "unpack", "unpack.row", "credit", "push.row"),
    *("offer", "offer.peer", "await_outputs", "gather", "gather.row", "meet", "meet.peer"),
)


def schedule(seed: int) -> tuple[Case, list[Fault]]:
    """A few ranks that fail somewhere, sometime, in some kind of exchange."""
    rng = random.Random(seed)
    victims = rng.sample(range(FEW.world), rng.choice((1, 1, 2, 3)))
    faults = [
        Fault(rank, rng.randint(1, 3), rng.choice(POINTS), rng.choice(("kill", "stop")), visit)
        for rank in victims
        for visit in [rng.randint(1, 8)]
    ]
    tokens = tuple(rng.randint(0, 4) for _ in range(FEW.world))
    mode, zero_copy = rng.choice(("plain", "hook")), rng.random() < 0.5
    return replace(FEW, tokens=tokens, mode=mode, zero_copy=zero_copy, seed=seed), faults
