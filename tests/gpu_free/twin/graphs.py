"""CUDA graphs of the twin: launches are recorded, then run again with the very same bytes."""

import contextlib
from collections.abc import Callable, Iterator

from twin import world


class Graph:
    """What one rank has captured. Each replay runs all of it in order."""

    def __init__(self) -> None:
        self._fake, self._id = world.enter(), world.own_stream()
        self._next, self._steps = 0, []

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Launches on this thread's stream are recorded, and nothing runs."""
        self._next = len(self._fake.launches())
        self._fake.begin_capture(world.own_stream(), self._id)
        try:
            yield
            self._collect()
        finally:
            self._fake.end_capture(self._id)

    def do(self, work: Callable[[], object]) -> None:
        """Puts work of the caller between launches, as a kernel of its own would be."""
        self._collect()
        self._steps.append(work)

    def replay(self) -> None:
        for step in self._steps:
            if callable(step):
                step()
            else:
                self._fake.replay(step)

    @property
    def num_launches(self) -> int:
        return sum(not callable(step) for step in self._steps)

    def _collect(self) -> None:
        for number in self._fake.captured(self._id, self._next):
            self._steps.append(number)
            self._next = number + 1
