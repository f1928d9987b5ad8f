"""Ranks that fail and go on, again and again: those whose processes ended are replaced."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import shrink_work
from lone_ranks import LoneRanks
from shrink_work import Run, Told

T = TypeVar("T")
LIMIT_S = 90.0  # of a run, on a busy machine


class Farm:
    """So many ranks, all in one run at a time."""

    def __init__(self, world: int) -> None:
        self.world, self.number = world, 0
        self.ranks = LoneRanks(shrink_work.serve)

    def run(self, run: Run) -> list[Told | None]:
        """What each rank told; None: its process ended, as it should."""
        self.number += 1
        self.ranks.start(rank for rank in range(self.world) if rank not in self.ranks.processes)
        try:
            return self._run(run)
        except BaseException:
            self.ranks.close()  # nobody knows where they are
            raise

    def _run(self, run: Run) -> list[Told | None]:
        deadline, told = time.monotonic() + LIMIT_S, []
        for rank in range(self.world):
            self.ranks.send(rank, self.number, run)
        for rank in range(self.world):
            try:
                told.append(self.ranks.receive(rank, deadline - time.monotonic()))
            except EOFError:
                assert rank in run.victims("kill"), f"rank {rank} has ended"
                self.ranks.kill(rank)
                told.append(None)
        for rank, one in enumerate(told):
            assert not isinstance(one, str), f"rank {rank}: {one}"
        return told


class Farms:
    """Several, since ranks that wait for a deadline leave the cores to others."""

    def __init__(self, number: int, world: int) -> None:
        self.all = [Farm(world) for _ in range(number)]

    def map(self, work: Callable[[Farm, T], str], items: Sequence[T]) -> list[str]:
        """What `work` finds wrong with each."""
        idle: queue.SimpleQueue[Farm] = queue.SimpleQueue()
        for farm in self.all:
            idle.put(farm)

        def on_idle_farm(item: T) -> str:
            farm = idle.get()
            try:
                return work(farm, item)
            finally:
                idle.put(farm)

        with ThreadPoolExecutor(len(self.all)) as threads:
            return list(threads.map(on_idle_farm, items))

    def close(self) -> None:
        for farm in self.all:
            farm.ranks.close()
