"""What the ranks of the failure and endurance tests do. Module level: rank processes import it."""

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import Case
from exchange import make_buffer, round_trip
from orders import Batch

import deep_ll
from deep_ll.testing.compare import assert_same_bits

SMALL = Case(world=3, experts=6, tokens=4, max_tokens=4, hidden=128, topk=2)
MPI_FILES = ("sm_segment.", "vader_segment.")


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def shm_files() -> set[str]:
    """Files in /dev/shm, but for those of MPI jobs and of Python's process pools, which may run
    beside the tests.
    """
    foreign = (*MPI_FILES, "sem.mp-")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(foreign)}


def uses_shm() -> bool:
    """Whether this process has a file of /dev/shm mapped or open."""
    if "/dev/shm" in Path("/proc/self/maps").read_text():
        return True
    return any("/dev/shm" in str(fd.resolve()) for fd in Path("/proc/self/fd").iterdir())


def lose_a_rank(group: Any, victim: int, moment: str, timeout_s: float) -> dict[str, Any]:
    """``victim`` dies before its part of dispatch or combine; the others say what they got."""
    buf = make_buffer(group, SMALL, timeout_s=timeout_s)
    assert not uses_shm()
    round_trip(buf, SMALL, 0)
    batch = Batch(buf, SMALL, 1)
    if moment == "combine":
        batch.dispatch()
        batch.receive()
    if buf.rank == victim:
        kill_myself()
    start = time.monotonic()
    try:
        getattr(batch, moment)()
    except deep_ll.PeerError as error:
        message = f"{type(error).__name__}: {error}"
    else:
        message = "nothing raised"
    took_s = time.monotonic() - start
    try:
        batch.dispatch()
    except deep_ll.DeepLLError as error:
        again = str(error)
    else:
        again = "nothing raised"
    buf.destroy()
    return {"message": message, "took_s": took_s, "again": again, "alone": works_alone()}


def works_alone() -> bool:
    """A new buffer without the dead rank works in this process."""
    from deep_ll.testing import run_ranks

    case = Case(world=1, experts=2, topk=2)
    run_ranks(1, lambda group: round_trip(make_buffer(group, case), case, 0))
    return True


def loop_until_killed(group: Any) -> None:
    for round_idx in range(1_000_000):
        with make_buffer(group, SMALL, timeout_s=20) as buf:
            for repeat in range(20):
                round_trip(buf, SMALL, 20 * round_idx + repeat)


def slow_peer(group: Any, delay_s: float) -> float:
    """One rank is late, within the deadline: everybody just waits, without burning a core."""
    with make_buffer(group, SMALL, timeout_s=20) as buf:
        round_trip(buf, SMALL, 0)
        used = time.process_time()
        if buf.rank == 0:
            time.sleep(delay_s)
        round_trip(buf, SMALL, 1)
        return time.process_time() - used


def interrupt(group: Any, moment: str) -> tuple[str, float, str]:
    """Rank 0 gets Ctrl-C while it waits for the others; what then, after how long, and afterwards.

    The others make one call more, with hooks: they must not take rank 0's next rows for the ones
    that it never sent.
    """
    buf = make_buffer(group, SMALL, timeout_s=3)
    round_trip(buf, SMALL, 0)
    batch = Batch(buf, SMALL, 1)
    if moment == "combine":
        batch.dispatch()
        batch.receive()
    if buf.rank != 0:
        time.sleep(1.5)
        return outcome(getattr(batch, moment))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the pool's ranks ignore it
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    what, _, _ = outcome(getattr(batch, moment))
    took_s = time.monotonic() - start
    return what, took_s, outcome(batch.dispatch)[2]


def outcome(call: Callable[[], None]) -> tuple[str, float, str]:
    try:
        call()
    except (KeyboardInterrupt, deep_ll.DeepLLError) as error:
        return type(error).__name__, 0.0, str(error)
    return "nothing raised", 0.0, ""


def late_then_timeout(group: Any) -> str:
    """Rank 0 comes too late: the others time out although nobody died."""
    buf = make_buffer(group, SMALL, timeout_s=0.5)
    message = ""
    if buf.rank == 0:
        time.sleep(1.5)
    else:
        try:
            Batch(buf, SMALL, 0).dispatch()
        except deep_ll.PeerTimeout as error:
            message = str(error)
    buf.destroy()
    return message


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def endure(group: Any, case: Case, num_rounds: int, warmup: int) -> dict[str, int]:
    """Rounds with random pauses, each compared; returns memory and descriptors before and after."""
    rng = random.Random(os.getpid())
    with make_buffer(group, case, timeout_s=30) as buf:
        batches = [Batch(buf, case, round_idx) for round_idx in range(7)]
        wanted = []
        for batch in batches:
            for step in (batch.dispatch, batch.receive, batch.combine, batch.reduce):
                step()
            wanted.append([t.clone() for t in received_rows(batch)] + [batch.combined.clone()])
            del batch.results, batch.waiting
        for round_idx in range(num_rounds):
            if round_idx == warmup:
                start = resources()
            one_round(batches[round_idx % 7], wanted[round_idx % 7], rng)
        end = resources()
    return {key: end[key] - start[key] for key in end}


def received_rows(batch: Batch) -> list[torch.Tensor]:
    """The valid rows, as bytes, and scales of every local expert."""
    (rows, scales), recv_count, _ = batch.results
    counts = recv_count.tolist()
    return [
        tensor[expert, :count]
        for tensor in (rows.view(torch.uint8), scales)
        for expert, count in enumerate(counts)
    ]


def one_round(batch: Batch, wanted: list[torch.Tensor], rng: random.Random) -> None:
    pause(rng)
    batch.dispatch()
    pause(rng)
    batch.waiting[1]()
    for actual, expected in zip(received_rows(batch), wanted, strict=False):
        assert torch.equal(actual, expected)
    pause(rng)
    batch.combine()
    batch.waiting[1]()
    assert_same_bits(batch.combined, wanted[-1], "combined")
    del batch.results, batch.waiting, batch.combined


def pause(rng: random.Random) -> None:
    """Mostly nothing, sometimes long enough to be overtaken or to make the others sleep."""
    kind = rng.random()
    if kind < 0.02:
        time.sleep(rng.random() * 3e-3)
    elif kind < 0.2:
        time.sleep(rng.random() * 2e-4)


def resources() -> dict[str, int]:
    return {
        "resident": resident_bytes(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def make_and_destroy(group: Any, num_times: int) -> dict[str, int]:
    for _ in range(20):
        make_buffer(group, SMALL).destroy()
    gc.collect()
    start = resources()
    for round_idx in range(num_times):
        buf = make_buffer(group, SMALL)
        round_trip(buf, SMALL, round_idx)
        if round_idx % 2:
            buf.destroy()  # else it is just dropped
    del buf
    gc.collect()
    end = resources()
    return {key: end[key] - start[key] for key in end}
