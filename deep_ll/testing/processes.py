"""Ranks as processes of this machine: a pool that stays warm between calls.

The processes come from a fork server that has torch loaded, so a rank costs milliseconds and few
megabytes instead of seconds and hundreds. They form one gloo group on the loopback interface.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from deep_ll.testing.rank_errors import (
    Failure,
    RankDied,
    RankError,
    RankTimeout,
    describe,
    rank_error,
)
from deep_ll.testing.rank_process import serve

PRELOAD = ("torch", "torch.distributed", "deep_ll", "deep_ll.testing.processes")
START_TIMEOUT_S = 120.0
# After a first failure, how long the other ranks may take to notice: their peer is gone.
GRACE_S = 15.0
STOP_S = 10.0
STACK_S = 0.1  # for a signal handler to write its stack


class RankPool:
    """``world_size`` rank processes that wait for work; a context manager.

    ``preload`` names further modules for the fork server to load before it forks. They count only
    for the first pool of a process, which starts the server.
    """

    def __init__(self, world_size: int, *, preload: Sequence[str] = ()) -> None:
        self.world_size = world_size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, *preload])
        # Port 0: the system picks one, so that pools never collide.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store: TCPStore | None = store
        self._conns: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._closed_because: str | None = None
        self._work = "start"
        self._stack_fds: list[int] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._conns)
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve,
                args=(rank, world_size, store.port, theirs),
                name=f"deep_ll-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._conns.append(ours)
            self._processes.append(process)
        try:
            self._stack_fds = self._collect("start", START_TIMEOUT_S, ())
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Process id of every rank."""
        return [process.pid or 0 for process in self._processes]

    @property
    def usable(self) -> bool:
        """False once the pool is closed, or was killed after a timeout or a death."""
        return self._closed_because is None

    def run(
        self,
        fn: Callable[..., Any],
        *args: object,
        timeout_s: float = 60.0,
        may_die: Collection[int] = (),
    ) -> list[Any]:
        """Calls ``fn(group, *args)`` on every rank; returns the results in rank order.

        ``fn`` must be importable by name. An exception in a rank is raised here as RankError, from
        the original. If ranks do not finish within ``timeout_s``, the pool is killed and
        RankTimeout raised, with their stacks. A rank in ``may_die`` may end its process instead:
        its result is then a RankDied, and the pool is not usable any more.
        """
        self.start(fn, *args)
        return self.finish(timeout_s=timeout_s, may_die=may_die)

    def start(self, fn: Callable[..., Any], *args: object) -> None:
        """The first half of ``run``: hands the work over and returns at once."""
        if self._closed_because is not None:
            raise RuntimeError(f"this pool is closed: {self._closed_because}; make a new RankPool")
        self._work = getattr(fn, "__name__", repr(fn))
        payload = pickle.dumps((fn, args))
        for rank, conn in enumerate(self._conns):
            try:
                conn.send_bytes(payload)
            except OSError:
                self._kill(f"rank {rank} {self._died(rank)} between two calls")
                raise RankError(rank, f"{self._closed_because}") from None

    def finish(self, *, timeout_s: float = 60.0, may_die: Collection[int] = ()) -> list[Any]:
        """The second half of ``run``: waits for the results."""
        return self._collect(self._work, timeout_s, may_die)

    def close(self) -> None:
        """Ends the ranks; a rank that does not leave by itself is killed."""
        if self._closed_because is not None:
            return
        for conn in self._conns:
            try:
                conn.send_bytes(b"")
            except OSError:
                continue
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill("close() was called")

    def kill(self) -> None:
        """Ends the ranks by SIGKILL, whatever they do."""
        self._kill("kill() was called")

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _collect(self, work: str, timeout_s: float, may_die: Collection[int]) -> list[Any]:
        results: dict[int, object] = {}
        first_failure: int | None = None
        deadline = time.monotonic() + timeout_s
        while len(results) < self.world_size:
            arrived = self._next_results(results, deadline - time.monotonic())
            if not arrived:
                break
            results.update(arrived)
            for rank, result in arrived.items():
                bad: tuple[type, ...] = (Failure,) if rank in may_die else (Failure, RankDied)
                if first_failure is None and isinstance(result, bad):
                    first_failure = rank
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        missing = [rank for rank in range(self.world_size) if rank not in results]
        stacks = self._stacks(missing) if self._stack_fds else ""
        if missing or any(isinstance(result, RankDied) for result in results.values()):
            self._kill(f"in {work}, {describe(results, missing)}")
        if first_failure is not None:
            raise rank_error(work, first_failure, results, missing)
        if missing:
            raise RankTimeout(
                missing[0],
                f"{work}: ranks {missing} of {self.world_size} did not finish within "
                f"{timeout_s:g} s; the pool was killed\n{stacks}",
            )
        return [results[rank] for rank in range(self.world_size)]

    def _next_results(self, known: Collection[int], timeout_s: float) -> dict[int, object]:
        """Waits for one rank or more to answer or to die."""
        pending = [rank for rank in range(self.world_size) if rank not in known]
        sources: dict[Any, int] = {self._conns[rank]: rank for rank in pending}
        sources |= {self._processes[rank].sentinel: rank for rank in pending}
        ready = {sources[source] for source in wait(list(sources), max(0.0, timeout_s))}
        return {rank: self._result(rank) for rank in ready}

    def _result(self, rank: int) -> object:
        try:
            # A rank that answered and then died has answered.
            if self._conns[rank].poll():
                return pickle.loads(self._conns[rank].recv_bytes())
        except (EOFError, OSError):
            pass
        return self._died(rank)

    def _died(self, rank: int) -> RankDied:
        self._processes[rank].join(STOP_S)
        return RankDied(self._processes[rank].exitcode)

    def _stacks(self, ranks: list[int]) -> str:
        """Where each of these ranks is now, as Python stacks."""
        texts = []
        for rank in ranks:
            pid = self._processes[rank].pid
            if pid is None or not self._processes[rank].is_alive():
                continue
            os.kill(pid, signal.SIGUSR1)
            time.sleep(STACK_S)
            texts.append(
                f"rank {rank}: " + Path(f"/proc/{pid}/fd/{self._stack_fds[rank]}").read_text()
            )
        return "\n".join(texts)

    def _kill(self, reason: str) -> None:
        if self._closed_because is None:
            self._closed_because = reason
        self._finalizer()
        self._store = None


def spawn_ranks(
    world_size: int, fn: Callable[..., Any], *args: object, timeout_s: float = 60.0
) -> list[Any]:
    """Calls ``fn(group, *args)`` on fresh rank processes once; see ``RankPool.run``."""
    with RankPool(world_size) as pool:
        return pool.run(fn, *args, timeout_s=timeout_s)


def _end(processes: list[BaseProcess], conns: list[Connection]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join(STOP_S)
    for conn in conns:
        conn.close()
