"""What rank processes are told to do; RankPool calls these functions in every rank."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist

from benchmarks.workload import MAX_ITERS, OPS, Job


class Contestant(Protocol):
    """One rank of something that is measured."""

    def check(self) -> None:
        """Raises unless dispatch and combine give what the oracle says."""

    def iterate(self, clock: Clock) -> None:
        """Times each of its operations once."""

    def close(self) -> None: ...


class Clock:
    """Notes when this rank began and ended each operation."""

    def __init__(self, job: Job, rank: int) -> None:
        self._barrier = job.barrier
        self._stamps = job.stamps.tensor[rank].numpy()
        self.iteration = 0

    def timed(self, op: str, work: Callable[[], Any]) -> None:
        """Waits for all ranks, then does the work; all processes read the same clock."""
        stamp = self._stamps[self.iteration, OPS.index(op)]
        self._barrier.wait()
        begin = time.monotonic()
        work()
        end = time.monotonic()
        stamp[0], stamp[1] = begin, end

    def align(self) -> None:
        """For work that is not timed: nobody begins it while another rank is still timed."""
        self._barrier.wait()


_contestant: Contestant | None = None
_clock: Clock | None = None


def start(group: dist.ProcessGroup, kind: str, job: Job, *args: object) -> None:
    """Makes this rank's contestant; `kind` names it: module:class."""
    global _contestant, _clock
    # A collection touches all that the fork server loaded: its pages would be copied to every rank.
    gc.freeze()
    gc.disable()
    module, name = kind.split(":")
    _clock = Clock(job, group.rank())
    _contestant = getattr(importlib.import_module(module), name)(group, job, *args)


def check(group: dist.ProcessGroup) -> None:
    """Compares with the oracle."""
    assert _contestant is not None
    _contestant.check()


def run(group: dist.ProcessGroup, num_iters: int) -> None:
    """Times every operation `num_iters` times."""
    assert _contestant is not None
    assert _clock is not None
    if not 1 <= num_iters <= MAX_ITERS:
        raise ValueError(f"{num_iters} iterations: at most {MAX_ITERS} at once")
    for _clock.iteration in range(num_iters):
        _contestant.iterate(_clock)


def describe(group: dist.ProcessGroup) -> Any:
    """What deep_ll says about its paths."""
    return _deep_ll().describe()


def run_hooks(group: dist.ProcessGroup, num_iters: int) -> Any:
    """Times deep_ll's hook mode."""
    assert _clock is not None
    return _deep_ll().run_hooks(_clock, num_iters)


def _deep_ll() -> Any:
    """The contestant: only deep_ll has paths and hooks."""
    assert _contestant is not None
    return _contestant


def stop(group: dist.ProcessGroup) -> None:
    """Ends the contestant; its memory is free afterwards."""
    global _contestant, _clock
    if _contestant is not None:
        _contestant.close()
    _contestant = _clock = None
