"""What stands in for a GPU in a dry run: CPU tensors, and launches that a fake driver hands to the
CPU's build of the kernels. A captured launch is kept, and runs when it is replayed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from twin import world

from on_gpu.device import spoiled

COPIED_BYTES = 1 << 24


class Recording:
    """What a thread has captured: launches, which the fake driver keeps, and work of torch."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps: list[Callable[[], object]] = []
        self._next = 0

    def take_launches(self) -> None:
        """Adds those since the last call."""
        fake = world.enter()
        for launch in fake.captured(self.number, self._next):
            self.steps.append(lambda launch=launch: fake.replay(launch))
            self._next = launch + 1


class HostDevice:
    """Has the methods of `CudaDevice`."""

    def __init__(self, spoil: bool = False) -> None:
        self.spoil = spoil
        self._fake = world.enter()
        self._numbers = itertools.count(1)
        self._thread = threading.local()

    def stream(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # the twin gives every thread its own

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def get(self, tensor: Tensor) -> Tensor:
        return spoiled(tensor) if self.spoil else tensor

    def do(self, work: Callable[[], object]) -> None:
        recording: Recording | None = getattr(self._thread, "recording", None)
        if recording is None:
            work()
        else:
            recording.take_launches()
            recording.steps.append(work)

    def synchronize(self) -> None:
        pass  # a launch returns when it has run

    def capture(self, group: Any, work: Callable[[], None]) -> Callable[[], None]:
        group.barrier()
        recording = self._thread.recording = Recording(next(self._numbers))
        self._fake.begin_capture(world.own_stream(), recording.number)
        try:
            work()
        finally:
            self._fake.end_capture(recording.number)
            self._thread.recording = None
        recording.take_launches()

        def replay() -> None:
            for step in recording.steps:
                step()

        return replay

    def seconds(self, work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def allocated_bytes(self) -> int:
        return 0  # torch does not count on CPUs

    def copy_source(self) -> Tensor:
        return torch.ones(COPIED_BYTES, dtype=torch.uint8)

    def num_sms(self) -> int:
        return 132
