"""The rounds of one configuration: who is resident together takes turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks import load
from benchmarks.contestants import FLOORS, LINKED, PRODUCTS, Ranks
from benchmarks.floor import Floor, FloorProgram
from benchmarks.link_floor import LinkFloor
from benchmarks.peers.mpi_launch import MpiLaunchError

if TYPE_CHECKING:
    from benchmarks.harness import Measurement, Plan
    from benchmarks.progress import Progress
    from benchmarks.workload import Inputs

WARM_UP_ITERS = 2
MIN_ITERS = 3  # of whatever is slow
PEER_SECONDS = 12.0  # for all iterations of a peer: those with many ranks take seconds each
LINK_SECONDS = 15.0  # the same for deep_ll where it uses the link, and for the floor of that
HOOK_ITERS = 10
MIN_HOOK_ITERS = 2


class Turns:
    """The rounds of contestants that are resident together."""

    def __init__(
        self, result: Measurement, inputs: Inputs, plan: Plan, progress: Progress, title: str
    ) -> None:
        self._result, self._inputs, self._plan = result, inputs, plan
        self._progress, self._title = progress, title
        self._ranks: list[Ranks] = []
        self._floors: dict[str, FloorProgram] = {}

    def run(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._start(name)
            self._rounds()
            if self._plan.paths:
                self._hooks()
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
        if name in FLOORS.values():
            self._floors[name] = floor = self._open_floor(name)
            self._result.floor_kernels = self._result.floor_kernels or floor.kernels
            return
        try:
            ranks = Ranks(name, self._result.shape, self._inputs)
        except MpiLaunchError as error:
            self._result.notes.append(f"EP{self._result.shape.ep}: without mpi: {error}")
            return
        self._ranks.append(ranks)
        self._say(f"checking {name}")
        ranks.check()
        if name in PRODUCTS:
            self._result.descriptions[name] = ranks.describe()

    def _open_floor(self, name: str) -> FloorProgram:
        shape, inputs = self._result.shape, self._inputs
        if name == FLOORS[LINKED]:
            return LinkFloor(shape, inputs, ranks_per_node=1)
        if shape.is_split:
            return LinkFloor(shape, inputs, shape.ranks_per_node)
        return Floor(shape, inputs)

    def _rounds(self) -> None:
        plan = self._plan
        iters = {ranks.name: self._warm_up(ranks) for ranks in self._ranks}
        iters |= {name: self._warm_up_floor(name) for name in self._floors}
        self._result.iters |= iters
        for done in range(plan.num_rounds):
            self._say(f"round {done + 1} of {plan.num_rounds}")
            self._result.others.append(load.others_share())
            for ranks in self._ranks:
                num = _share(iters[ranks.name], done, plan.num_rounds)
                if num > 0:
                    self._add(ranks, num)
            for name in self._floors:
                self._add_floor(name, _share(iters[name], done, plan.num_rounds))

    def _uses_link(self, name: str) -> bool:
        return name in (LINKED, FLOORS[LINKED]) or self._result.shape.is_split

    def _warm_up(self, ranks: Ranks) -> int:
        """Returns how often to run it."""
        self._say(f"warming up {ranks.name}")
        if ranks.name not in PRODUCTS:
            return self._affordable(ranks.run, PEER_SECONDS)
        if self._uses_link(ranks.name):
            return self._affordable(ranks.run, LINK_SECONDS)
        ranks.run(WARM_UP_ITERS)
        return self._plan.iters

    def _warm_up_floor(self, name: str) -> int:
        if not self._uses_link(name):
            return self._plan.iters
        self._say(f"warming up {name}")
        self._floors[name].run(1)
        return self._affordable(self._floors[name].run, LINK_SECONDS / 2)

    def _affordable(self, run: Callable[[int], object], seconds: float) -> int:
        begin = time.monotonic()
        run(1)
        took = time.monotonic() - begin
        return min(self._plan.iters, max(MIN_ITERS, int(seconds / took)))

    def _hooks(self) -> None:
        for ranks in self._ranks:
            if ranks.name not in PRODUCTS:
                continue
            self._say(f"hooks of {ranks.name}")
            share = HOOK_ITERS * self._result.iters[ranks.name] // self._plan.iters
            num_iters = max(MIN_HOOK_ITERS, min(share, self._plan.iters))
            self._result.hooks[ranks.name] = ranks.run_hooks(num_iters)

    def _add(self, ranks: Ranks, num_iters: int) -> None:
        walls = self._result.walls.setdefault(ranks.name, {})
        for op, times in ranks.run(num_iters).items():
            walls.setdefault(op, []).extend(times)

    def _add_floor(self, name: str, num_iters: int) -> None:
        if num_iters == 0:
            return
        walls = self._result.floors.setdefault(name, {})
        for op, by_store in self._floors[name].run(num_iters).items():
            for store, times in by_store.items():
                walls.setdefault(op, {}).setdefault(store, []).extend(times)

    def _end(self, how: Callable[[Ranks], None]) -> None:
        with ExitStack() as stack:  # one that fails does not keep the others
            for floor in self._floors.values():
                stack.callback(floor.close)
            for ranks in self._ranks:
                stack.callback(how, ranks)


def _share(total: int, done: int, num_rounds: int) -> int:
    """The iterations of one round, so that all rounds together have `total`."""
    return total * (done + 1) // num_rounds - total * done // num_rounds
