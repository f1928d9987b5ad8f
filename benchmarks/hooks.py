"""Hook mode: how long a rank sends, how long it receives, and how much of that a product hides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from benchmarks.rank_side import Clock

SIDE = 128  # of the matrices that are multiplied again and again: some 0.1 ms
FIRST_PRODUCTS = 8
CALIBRATIONS, SAMPLES = 2, 3

Start = Callable[[], Callable[[], None]]  # sends; returns what receives


@dataclass
class Stages:
    """Seconds of one rank, by iteration."""

    send: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    matmul: list[float] = field(default_factory=list)
    series: list[float] = field(default_factory=list)  # of these three, one after the other
    together: list[float] = field(default_factory=list)  # send, multiply, receive


HookRuns = dict[str, Stages]  # by operation


@dataclass(frozen=True)
class Hidden:
    """Medians over the iterations of means over the ranks, milliseconds."""

    send_ms: float
    receive_ms: float
    matmul_ms: float
    series_ms: float
    together_ms: float

    @property
    def share(self) -> float:
        """The part of the receiving that costs no time behind the product. On a machine with more
        ranks than cores the two fight for cores, and it may be less than nothing.
        """
        return (self.series_ms - self.together_ms) / self.receive_ms

    @staticmethod
    def of(ranks: list[Stages]) -> Hidden:
        """From what all ranks measured."""
        columns = ("send", "receive", "matmul", "series", "together")
        by_iter = (zip(*(getattr(rank, name) for rank in ranks), strict=True) for name in columns)
        return Hidden(*(statistics.median(map(statistics.mean, rows)) * 1e3 for rows in by_iter))


class HookTimer:
    """Times one rank. All ranks do the same at the same time, the products too."""

    def __init__(
        self, group: dist.ProcessGroup, clock: Clock, dispatch: Start, combine: Start
    ) -> None:
        self._group, self._clock = group, clock
        self._starts = {"dispatch": dispatch, "combine": combine}
        self._matrix = torch.randn(SIDE, SIDE) / SIDE
        self._product = torch.empty(SIDE, SIDE)
        self._num_products = dict.fromkeys(self._starts, FIRST_PRODUCTS)
        for _ in range(CALIBRATIONS):
            self._calibrate()

    def run(self, num_iters: int) -> HookRuns:
        """The stages of both operations."""
        runs = {op: Stages() for op in self._starts}
        for _ in range(num_iters):
            for op, stages in runs.items():
                self._in_series(op, stages)
                self._together(op, stages)
        return runs

    def _in_series(self, op: str, stages: Stages) -> None:
        self._clock.align()
        begin = time.monotonic()
        receive = self._starts[op]()
        sent = time.monotonic()
        receive()
        received = time.monotonic()
        self._multiply(op)
        end = time.monotonic()
        stages.send.append(sent - begin)
        stages.receive.append(received - sent)
        stages.matmul.append(end - received)
        stages.series.append(end - begin)

    def _together(self, op: str, stages: Stages) -> None:
        self._clock.align()
        begin = time.monotonic()
        receive = self._starts[op]()
        self._multiply(op)
        receive()
        stages.together.append(time.monotonic() - begin)

    def _multiply(self, op: str) -> None:
        for _ in range(self._num_products[op]):
            torch.mm(self._matrix, self._matrix, out=self._product)

    def _calibrate(self) -> None:
        """Makes the products as long as the receiving, on the mean of all ranks."""
        runs = {op: Stages() for op in self._starts}
        for _ in range(SAMPLES):
            for op, stages in runs.items():
                self._in_series(op, stages)
        for op, stages in runs.items():
            times = torch.tensor([stages.receive, stages.matmul])
            dist.all_reduce(times, group=self._group)
            ratio = (times[0].median() / times[1].median()).item()
            self._num_products[op] = max(1, round(self._num_products[op] * ratio))
