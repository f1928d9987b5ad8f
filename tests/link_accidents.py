"""What the ranks of test_link_failure.py do."""

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist
from accidents import SMALL, outcome, uses_shm, works_alone
from cases import Case
from exchange import round_trip
from orders import Batch
from topologies import Topology, make_linked_buffer

FOUR = Case(experts=8, tokens=4, max_tokens=4, hidden=128, topk=4)


class Told(NamedTuple):
    """How a call ended, and what came after."""

    error: str
    text: str
    took_s: float
    again: str
    closing_s: float


def timed(call: Callable[[], None]) -> tuple[str, str, float]:
    start = time.monotonic()
    error, _, text = outcome(call)
    return error, text, time.monotonic() - start


def end_of(buf: Any, batch: Batch, call: Callable[[], None]) -> Told:
    """Of a call that fails; the buffer cannot be used any more, but destroyed."""
    error, text, took_s = timed(call)
    again = outcome(batch.dispatch)[2]
    start = time.monotonic()
    buf.destroy()
    closing_s = time.monotonic() - start
    assert works_alone()
    assert not uses_shm()
    return Told(error, text, took_s, again, closing_s)


def before(buf: Any, case: Case, moment: str) -> Batch:
    """All that comes before the moment, on all ranks."""
    round_trip(buf, case, 0)
    batch = Batch(buf, case, 1)
    if moment == "combine":
        batch.dispatch()
        batch.receive()
    dist.barrier()  # what ranks sent has left them
    return batch


def lose_a_rank(
    group: Any, case: Case, topology: Topology, victim: int, moment: str, timeout_s: float
) -> Told:
    """`victim` is killed before its part of dispatch or combine; the others tell."""
    buf = make_linked_buffer(group, case, topology, timeout_s=timeout_s)
    batch = before(buf, case, moment)
    if buf.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return end_of(buf, batch, getattr(batch, moment))


def stop_a_rank(
    group: Any, case: Case, topology: Topology, victim: int, moment: str, timeout_s: float
) -> Told:
    """`victim` is stopped there, with all its threads, until the others are through."""
    buf = make_linked_buffer(group, case, topology, timeout_s=timeout_s)
    batch = before(buf, case, moment)
    if buf.rank == victim:
        stop_myself(8.0)
    return end_of(buf, batch, getattr(batch, moment))


def stop_myself(seconds: float) -> None:
    text = f"sleep {seconds}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", text]):
        os.kill(os.getpid(), signal.SIGSTOP)


def interrupt_put(group: Any, case: Case, topology: Topology) -> tuple[str, float]:
    """Ctrl-C while rank 0 sends to a rank that takes nothing."""
    buf = make_linked_buffer(group, case, topology, timeout_s=30)
    batch = before(buf, case, "combine")
    if buf.rank != 0:
        stop_myself(5.0)
        return outcome(batch.combine)[0], 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the pool's ranks ignore it
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    error, _, took_s = timed(batch.combine)
    buf.destroy()
    return error, took_s


def leave_early(group: Any, topology: Topology, destroy: bool) -> tuple[str, str, float]:
    """Rank 0 goes when its own last combine is done. The others end theirs, and are told in the
    next.
    """
    case = Case(world=3, experts=6, mode="hook")
    buf = make_linked_buffer(group, case, topology, timeout_s=30)
    batch = Batch(buf, case, 0)
    for step in (batch.dispatch, batch.receive, batch.combine):
        step()
    if buf.rank != 0:
        time.sleep(0.5)
    batch.reduce()
    if buf.rank == 0:
        if destroy:
            buf.destroy()
        del buf, batch
        gc.collect()
        time.sleep(2)
        return "", "", 0.0
    told = timed(Batch(buf, case, 1).dispatch)
    buf.destroy()
    return told


def hook_after_destroy(group: Any, topology: Topology) -> tuple[str, str, float]:
    """One that still waits for rank 0, who is late."""
    case = Case(world=3, experts=6, mode="hook")
    buf = make_linked_buffer(group, case, topology, timeout_s=20)
    round_trip(buf, case, 0)
    batch = Batch(buf, case, 1)
    batch.dispatch()
    batch.receive()
    dist.barrier()
    if buf.rank != 0:
        batch.combine()
        buf.destroy()
        return timed(batch.reduce)
    time.sleep(1)
    buf.destroy()
    return timed(batch.combine)


def loop_until_killed(group: Any, topology: Topology) -> None:
    for round_idx in range(1_000_000):
        with make_linked_buffer(group, SMALL, topology, timeout_s=20) as buf:
            for repeat in range(5):
                round_trip(buf, SMALL, 5 * round_idx + repeat)
