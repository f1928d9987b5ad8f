"""DEEP_LL_TRACE: what a rank did and when, as a file for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep_ll.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deep_ll._native import Event, Watch

MAX_EVENTS = 1 << 17  # that a rank keeps: the last ones
_US = 1000  # ns


class Trace:
    """One rank's file. It is written once, when the buffer ends.

    Args:
        watch: of the rank; it keeps events from now on.
        folder: where to; made if need be.
        rank, num_ranks, number: of the buffer.

    Raises:
        ArgumentError: there can be no file.
    """

    def __init__(self, watch: Watch, folder: str, rank: int, num_ranks: int, number: int) -> None:
        host, pid = socket.gethostname(), os.getpid()
        self._facts = {
            "rank": rank,
            "num_ranks": num_ranks,
            "buffer": number,
            "host": host,
            "pid": pid,
            "wall_ns": time.time_ns() - time.monotonic_ns(),
        }
        plain = re.sub(r"[^A-Za-z0-9.-]", "_", host)
        name = f"rank{rank:04d}-of{num_ranks}-buffer{number}-{plain}-{pid}.json"
        self._path, self._watch = Path(folder, name), watch
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            raise ArgumentError(
                f"DEEP_LL_TRACE={folder!r}: no file can be made: {error}"
            ) from error
        watch.record(MAX_EVENTS)

    def write(self) -> None:
        """Writes what was kept. Warns if that cannot be."""
        told = self._watch.events()
        facts = {**self._facts, "lost": self._watch.num_events() - len(told)}
        document = {"traceEvents": list(slices(told, facts)), "otherData": facts}
        try:
            self._path.write_text(json.dumps(document), encoding="utf-8")
        except OSError as error:
            warnings.warn(f"the trace {self._path} could not be written: {error}", stacklevel=2)


def slices(told: list[Event], facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events as the viewers know them: names of rows, then a slice a call, a phase, a wait.
    A wait's says for how many microseconds each rank was waited for.
    """
    place = {"pid": facts["rank"], "tid": facts["buffer"]}
    yield {"ph": "M", "name": "process_name", **place, "args": {"name": f"rank {facts['rank']}"}}
    row = f"buffer #{facts['buffer']}, process {facts['pid']} on {facts['host']}"
    yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row}}
    waits: dict[int, float] = {}
    for index, (name, call, start, duration, epoch, peer) in enumerate(told):
        slice_ = {"ph": "X", "ts": start / _US, **place}
        if peer < 0:
            kind = "call" if name == call else "phase"
            shown = f"{name} #{epoch}" if name == call else name
            args = {"epoch": epoch, "call": call}
            yield {**slice_, "name": shown, "cat": kind, "dur": duration / _US, "args": args}
            continue
        waits[peer] = duration / _US
        following = told[index + 1] if index + 1 < len(told) else None
        if following is not None and following[5] >= 0 and following[2] == start:
            continue  # of the same wait
        longest = max(waits, key=lambda rank: waits[rank])
        args = {"epoch": epoch, "call": call, "for": name, "waits_us": waits}
        shown = f"wait for rank {longest}"
        yield {**slice_, "name": shown, "cat": "wait", "dur": waits[longest], "args": args}
        waits = {}
