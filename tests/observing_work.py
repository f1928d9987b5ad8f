"""What the ranks of test_observing.py do: one of them is late, or stuck."""

import contextlib
import ctypes
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cases import Case, make_inputs
from exchange import make_buffer, mode_options, round_trip, wait
from topologies import ALL_LINK, make_linked_buffer

import deep_ll
from deep_ll import _native, stats, trace

LATE_S = 0.05
ROUNDS = 6
SIGACTION_BYTES = 256  # more than it has
SIGUSR1_BIT = 1 << (signal.SIGUSR1 - 1)


class Told(NamedTuple):
    """What a rank counted."""

    dispatch_ns: list[int]
    combine_ns: list[int]
    stats: stats.Stats


def late(group: Any, case: Case, victim: int, moment: str, linked: bool = False) -> Told:
    """All rounds; `victim` comes late to each dispatch, or to each combine."""
    with make_linked_buffer(group, case, ALL_LINK) if linked else make_buffer(group, case) as buf:
        return _late(buf, case, victim, moment)


def _late(buf: deep_ll.Buffer, case: Case, victim: int, moment: str) -> Told:
    costs = {name: torch.zeros(case.world, dtype=torch.int64) for name in ("dispatch", "combine")}
    mine, out = make_inputs(case, 0)[buf.rank], None
    round_trip(buf, case, 0)  # everybody has come
    for _ in range(ROUNDS):
        if (buf.rank, moment) == (victim, "dispatch"):
            time.sleep(LATE_S)
        x, count, handle, event, hook = buf.low_latency_dispatch(
            mine.x,
            mine.topk_idx,
            case.max_tokens,
            case.experts,
            dispatch_wait_recv_cost_stats=costs["dispatch"],
            use_fp8=False,
            **mode_options(case.mode),
        )
        wait(case.mode, event, hook)
        if (buf.rank, moment) == (victim, "combine"):
            time.sleep(LATE_S)
        out, event, hook = buf.low_latency_combine(
            torch.zeros_like(x),
            mine.topk_idx,
            mine.topk_weights,
            handle,
            combine_wait_recv_cost_stats=costs["combine"],
            **mode_options(case.mode),
        )
        wait(case.mode, event, hook)
        del x, count, handle
    assert out is not None
    return Told(costs["dispatch"].tolist(), costs["combine"].tolist(), buf.stats())


def moved(group: Any, case: Case) -> tuple[stats.Stats, list[list[int]], int]:
    """One round; the choices of all ranks, and the bytes of a label."""
    inputs = make_inputs(case, 0)
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        fmt = {"bf16": 0, "fp8": 1}[case.cast]
        numbers = (case.experts, case.max_tokens, case.hidden, case.topk, fmt)
        shape = _native.Shape(case.world, buf.rank, *numbers)
        choices = [mine.topk_idx.flatten().tolist() for mine in inputs]
        return buf.stats(), choices, shape.row_bytes + shape.label_bytes


def catches_sigusr1() -> bool:
    """Whether this process has a handler of SIGUSR1, Python's or another."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "SigCgt" in line
    )
    return bool(int(line.split()[1], 16) & SIGUSR1_BIT)


@contextlib.contextmanager
def nobody_handles_sigusr1() -> Iterator[None]:
    """As in a program of a user: rank processes of tests have a handler."""
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    assert libc.sigaction(signal.SIGUSR1, None, action) == 0
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        yield
    finally:
        assert libc.sigaction(signal.SIGUSR1, action, None) == 0


@contextlib.contextmanager
def stderr_into(file: Any) -> Iterator[None]:
    """Lets descriptor 2 be another file."""
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def stuck(group: Any, case: Case, victim: int, moment: str) -> dict[str, Any]:
    """All wait for `victim`, and are asked where they are: by a signal, and by a call of another
    thread."""
    with nobody_handles_sigusr1():
        return _stuck(group, case, victim, moment)


def _stuck(group: Any, case: Case, victim: int, moment: str) -> dict[str, Any]:
    assert not catches_sigusr1()
    asked = io.StringIO()
    with make_buffer(group, case) as buf, tempfile.TemporaryFile() as file, stderr_into(file):
        installed = catches_sigusr1()
        round_trip(buf, case, 0)
        mine = make_inputs(case, 0)[buf.rank]
        dispatch = (mine.x, mine.topk_idx, case.max_tokens, case.experts)
        if moment == "combine":
            x, _, handle, _, _ = buf.low_latency_dispatch(*dispatch, use_fp8=False)
        if buf.rank == victim:
            time.sleep(0.8)

        def ask() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            buf.dump(asked)

        timer = threading.Timer(0.4, ask)
        timer.start()
        if moment == "combine":
            buf.low_latency_combine(torch.zeros_like(x), *mine[1:3], handle)
        else:
            buf.low_latency_dispatch(*dispatch, use_fp8=False)
        timer.join()
        file.seek(0)
        told = file.read().decode()
    return {
        "installed": installed,
        "left": catches_sigusr1(),
        "signal": told,
        "call": asked.getvalue(),
        "pid": os.getpid(),
    }


def own_handler(group: Any, case: Case) -> tuple[list[int], bool]:
    """A program that handles SIGUSR1 itself: what it heard, and whether it still does."""
    heard: list[int] = []
    with nobody_handles_sigusr1():
        signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
        with make_buffer(group, case) as buf:
            os.kill(os.getpid(), signal.SIGUSR1)
            round_trip(buf, case, 0)
        return heard, catches_sigusr1()


def dump_default(group: Any, case: Case) -> str:
    """What dump() prints without an argument, of a buffer that does nothing yet; and a destroyed
    one."""
    before, sys.stderr = sys.stderr, io.StringIO()
    try:
        buf = make_buffer(group, case)
        buf.dump()
        buf.destroy()
        buf.dump()
        return sys.stderr.getvalue()
    finally:
        sys.stderr = before


def traced(group: Any, folder: str, case: Case, victim: int, most: int) -> list[int]:
    """As `late`, with a trace that keeps `most` events; how long it waited, by rank."""
    os.environ["DEEP_LL_TRACE"], trace.MAX_EVENTS = folder, most
    try:
        told = late(group, case, victim, "dispatch")
    finally:
        del os.environ["DEEP_LL_TRACE"]
    return [a + b for a, b in zip(told.dispatch_ns, told.combine_ns, strict=True)]
