"""Ranks as threads of one process: the same kernels and the same API, for notebooks, sanitizers
and quick tests.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Meeting:
    """What the ranks of one group share."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self.values: list[Any] = [None] * size


class ThreadGroup:
    """A group of threads; a Buffer takes it where it takes a process group."""

    in_process = True

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective."""
        self._meeting.values[self.rank] = value
        self._meeting.barrier.wait()
        values = list(self._meeting.values)
        self._meeting.barrier.wait()
        return values

    def barrier(self) -> None:
        """Returns when all ranks have come."""
        self._meeting.barrier.wait()

    def abort(self) -> None:
        """Lets the ranks that wait in this group fail at once."""
        self._meeting.barrier.abort()


def run_ranks(
    world_size: int, fn: Callable[..., T], *args: object, timeout_s: float = 60.0
) -> list[T]:
    """Runs `fn(group, *args)` on `world_size` threads and returns their results by rank.

    Args:
        world_size: number of ranks.
        fn: called once a rank; `group.rank` tells which. `deep_ll.Buffer(group, ...)` works in it.
        args: passed on.
        timeout_s: how long all of it may take.

    Raises:
        The first rank's exception, if any rank raised.
        TimeoutError: some ranks were not done in time; it names them.
    """
    meeting = _Meeting(world_size, timeout_s)
    groups = [ThreadGroup(rank, world_size, meeting) for rank in range(world_size)]
    results: list[Any] = [None] * world_size
    errors: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        try:
            results[rank] = fn(groups[rank], *args)
        except BaseException as error:
            errors.append((rank, error))
            groups[rank].abort()

    threads = [
        threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread.name for thread in threads if thread.is_alive()]
    # A broken meeting is what the others see when one rank fails: the cause comes first.
    for rank, error in sorted(
        errors, key=lambda item: isinstance(item[1], threading.BrokenBarrierError)
    ):
        error.add_note(f"raised by rank {rank}") if hasattr(error, "add_note") else None
        raise error
    if stuck:
        raise TimeoutError(f"{', '.join(stuck)} of {world_size} not done after {timeout_s} s")
    return results
