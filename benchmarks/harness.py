"""Measures one configuration: all contestants in alternating rounds, checked before and after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks import load, memory
from benchmarks.contestants import PRODUCT, Ranks, Walls
from benchmarks.floor import Floor
from benchmarks.floor import Walls as FloorWalls
from benchmarks.peers.mpi_launch import MpiLaunchError
from benchmarks.progress import Progress
from benchmarks.workload import Inputs, Shape

WARM_UP_ITERS = 2
MIN_PEER_ITERS = 3
PEER_SECONDS = 12.0  # for all iterations of a peer: those with many ranks take seconds each


@dataclass(frozen=True)
class Plan:
    """How to measure."""

    names: Sequence[str]  # contestants, deep_ll first
    iters: int
    num_rounds: int
    seed: int


@dataclass
class Measurement:
    """What was measured."""

    shape: Shape
    walls: dict[str, Walls] = field(default_factory=dict)  # by contestant that is not the floor
    floor: FloorWalls = field(default_factory=dict)
    floor_kernels: str | None = None
    iters: dict[str, int] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)  # load by other programs, per round
    notes: list[str] = field(default_factory=list)


def measure(asked: Shape, plan: Plan, progress: Progress) -> Measurement:
    """Runs all contestants on one configuration."""
    free = memory.available_bytes()
    shape, groups = memory.fit(plan.names, asked, free)
    result = Measurement(shape)
    title = f"EP{shape.ep} x {shape.tokens}"
    _note_memory(result, asked, groups, free)
    progress.say(f"{title}: inputs")
    inputs = Inputs(shape, plan.seed)
    try:
        for group in groups:
            _Turns(result, inputs, plan, progress, title).run(group)
    finally:
        inputs.close()
    _note_rounds(result, plan)
    return result


def _note_memory(result: Measurement, asked: Shape, groups: memory.Groups, free: int) -> None:
    shape = result.shape
    if shape.tokens != asked.tokens:
        result.notes.append(
            f"EP{shape.ep}: {shape.tokens} instead of {asked.tokens} tokens, "
            f"since {free / 1e9:.1f} GB of memory were free"
        )
    if len(groups) > 1:
        turns = ", then ".join(" with ".join(group) for group in groups)
        result.notes.append(
            f"EP{shape.ep}: one after the other, not in turns ({turns}), "
            f"since {free / 1e9:.1f} GB of memory were free"
        )


def _note_rounds(result: Measurement, plan: Plan) -> None:
    fewer = [f"{num} of {name}" for name, num in result.iters.items() if num < plan.iters]
    if fewer:
        result.notes.append(f"EP{result.shape.ep}: iterations: {', '.join(fewer)}")
    others = statistics.mean(result.others)
    if others > load.NOTABLE:
        used = f"others used {others:.0%} of the machine"
        result.notes.append(f"EP{result.shape.ep}: {used}: do not trust the times")


class _Turns:
    """The rounds of contestants that are resident together."""

    def __init__(
        self, result: Measurement, inputs: Inputs, plan: Plan, progress: Progress, title: str
    ) -> None:
        self._result, self._inputs, self._plan = result, inputs, plan
        self._progress, self._title = progress, title
        self._ranks: list[Ranks] = []
        self._floor: Floor | None = None

    def run(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._start(name)
            self._rounds()
            for ranks in self._ranks:
                self._say(f"checking {ranks.name} again")
                ranks.check()
        except BaseException:
            self._end(Ranks.kill)
            raise
        self._end(Ranks.close)

    def _say(self, what: str) -> None:
        self._progress.say(f"{self._title}: {what}")

    def _start(self, name: str) -> None:
        self._say(f"starting {name}")
        if name == "floor":
            self._floor = Floor(self._result.shape, self._inputs)
            self._result.floor_kernels = self._floor.kernels
            return
        try:
            ranks = Ranks(name, self._result.shape, self._inputs)
        except MpiLaunchError as error:
            self._result.notes.append(f"EP{self._result.shape.ep}: without mpi: {error}")
            return
        self._ranks.append(ranks)
        self._say(f"checking {name}")
        ranks.check()

    def _rounds(self) -> None:
        plan = self._plan
        iters = {ranks.name: self._warm_up(ranks) for ranks in self._ranks}
        self._result.iters |= iters
        for done in range(plan.num_rounds):
            self._say(f"round {done + 1} of {plan.num_rounds}")
            self._result.others.append(load.others_share())
            for ranks in self._ranks:
                num = _share(iters[ranks.name], done, plan.num_rounds)
                if num > 0:
                    self._add(ranks, num)
            if self._floor is not None:
                self._add_floor(_share(plan.iters, done, plan.num_rounds))

    def _warm_up(self, ranks: Ranks) -> int:
        """Returns how often to run it."""
        self._say(f"warming up {ranks.name}")
        if ranks.name == PRODUCT:
            ranks.run(WARM_UP_ITERS)
            return self._plan.iters
        begin = time.monotonic()
        ranks.run(1)
        seconds = time.monotonic() - begin
        return min(self._plan.iters, max(MIN_PEER_ITERS, int(PEER_SECONDS / seconds)))

    def _add(self, ranks: Ranks, num_iters: int) -> None:
        walls = self._result.walls.setdefault(ranks.name, {})
        for op, times in ranks.run(num_iters).items():
            walls.setdefault(op, []).extend(times)

    def _add_floor(self, num_iters: int) -> None:
        if self._floor is None or num_iters == 0:
            return
        for op, by_store in self._floor.run(num_iters).items():
            for store, times in by_store.items():
                self._result.floor.setdefault(op, {}).setdefault(store, []).extend(times)

    def _end(self, how: Callable[[Ranks], None]) -> None:
        with ExitStack() as stack:  # one that fails does not keep the others
            if self._floor is not None:
                stack.callback(self._floor.close)
            for ranks in self._ranks:
                stack.callback(how, ranks)


def _share(total: int, done: int, num_rounds: int) -> int:
    """The iterations of one round, so that all rounds together have `total`."""
    return total * (done + 1) // num_rounds - total * done // num_rounds
