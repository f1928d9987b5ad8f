"""Rank processes that only a store joins: each can be ended and begun anew."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from deep_ll.testing.processes import PRELOAD

ANSWER_S = 60.0


class LoneRanks:
    """By rank; `serve(rank, port, *args, conn)` is what a process does."""

    def __init__(self, serve: Callable[..., None]) -> None:
        self._serve = serve
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*PRELOAD, "exchange", "cases"])
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: dict[int, Any] = {}
        self.pipes: dict[int, Any] = {}

    def start(self, ranks: Iterable[int], *args: object) -> None:
        for rank in ranks:
            self.pipes[rank], theirs = self._context.Pipe()
            everything = (rank, self.store.port, *args, theirs)
            process = self._context.Process(target=self._serve, args=everything, daemon=True)
            self.processes[rank] = process
            process.start()
            theirs.close()

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            process = self.processes.pop(rank)
            process.kill()
            process.join()
            self.pipes.pop(rank).close()

    def send(self, rank: int, *what: object) -> None:
        self.pipes[rank].send(what)

    def receive(self, rank: int, timeout_s: float = ANSWER_S) -> Any:
        """What it says. EOFError: it has ended."""
        assert self.pipes[rank].poll(max(0.0, timeout_s)), f"rank {rank} does not answer"
        return self.pipes[rank].recv()

    def close(self) -> None:
        self.kill(*list(self.processes))
