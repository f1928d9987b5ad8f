"""What the ranks of test_link.py do. A heap: the header, a word per peer, an inbox per peer."""

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deep_ll import _native
from deep_ll.errors import LinkUnavailable, PeerError
from deep_ll.runtime.group import as_group
from deep_ll.runtime.link import OwnHeap, open_link

WORDS = _native.HEAP_HEADER_BYTES
INBOXES = 2 * WORDS
MB = 1 << 20
PATIENCE_S = 30.0

_C = ctypes.CDLL(None)
_C.getenv.restype = ctypes.c_char_p


class Ends:
    """A rank's heap and its link to all others."""

    def __init__(self, group: Any, inbox_bytes: int) -> None:
        self.group = as_group(group)
        self.rank, self.size, self.inbox_bytes = self.group.rank, self.group.size, inbox_bytes
        self.heap = torch.zeros(INBOXES + self.size * inbox_bytes, dtype=torch.uint8)
        self.bytes = self.heap.numpy()
        self.words = self.bytes[WORDS:INBOXES].view(np.uint64)
        self.peers = [peer for peer in range(self.size) if peer != self.rank]
        heap = OwnHeap(self.heap.data_ptr(), self.heap.numel())
        self.link = open_link(self.group, heap, self.peers).link

    def inbox(self, sender: int, size: int) -> int:
        """Offset of some bytes at the end of what belongs to a sender."""
        return INBOXES + (sender + 1) * self.inbox_bytes - size

    def put(self, peer: int, offset: int, data: np.ndarray) -> None:
        self.link.put(peer, offset, data.ctypes.data, data.nbytes)

    def signal(self, peer: int, word: int, index: int | None = None) -> None:
        self.link.signal(peer, WORDS + 8 * (self.rank if index is None else index), word)

    def await_word(self, index: int, word: int, look: bool = True) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while int(self.words[index]) < word:
            if look:
                self.link.progress()
            assert time.monotonic() < deadline, f"rank {self.rank}: no word {word} from {index}"
            time.sleep(0)

    def stats(self) -> list[dict[str, int]]:
        return [self.link.stats(peer) for peer in range(self.size)]


@contextlib.contextmanager
def ends(group: Any, inbox_bytes: int = MB) -> Iterator[Ends]:
    both = Ends(group, inbox_bytes)
    try:
        yield both
        both.group.all_gather(None)
    finally:
        both.link.close(10**9)


def blocks(seed: list[int], inbox_bytes: int) -> list[tuple[int, np.ndarray]]:
    """Places without overlap and random bytes for them: sizes from one byte to all, unaligned."""
    rng = np.random.Generator(np.random.SFC64(seed))
    placed, at = [], int(rng.integers(0, 9))
    for _ in range(int(rng.integers(1, 9))):
        size = int(min(2 ** rng.uniform(0, 20), inbox_bytes - at))
        if size > 0:
            placed.append((at, np.frombuffer(rng.bytes(size), np.uint8)))
        at += size + int(rng.integers(0, 9))
    rng.shuffle(placed)
    return placed


def random_blocks(group: Any, rounds: int) -> int:
    """Every rank sends every other blocks and then a word; who sees the word has the blocks."""
    num_blocks = 0
    with ends(group) as both:
        for turn in range(1, rounds + 1):
            for peer in both.peers:
                start = both.inbox(both.rank, both.inbox_bytes)
                for at, data in blocks([both.rank, peer, turn], both.inbox_bytes):
                    both.put(peer, start + at, data)
                both.signal(peer, turn)
            for peer in both.peers:
                # Half of the ranks leave all arrivals to the link's own thread.
                both.await_word(peer, turn, look=both.rank % 2 == 0)
                start = both.inbox(peer, both.inbox_bytes)
                for at, data in blocks([peer, both.rank, turn], both.inbox_bytes):
                    found = both.bytes[start + at : start + at + data.size]
                    assert (found == data).all(), (both.rank, peer, turn, at, data.size)
                    num_blocks += 1
                both.signal(peer, turn, index=both.size + both.rank)  # its next may come
            for peer in both.peers:
                both.await_word(both.size + peer, turn)
        for stats in both.stats():
            assert stats["dropped"] == stats["held_back"] == 0
    return num_blocks


def full_messages(group: Any) -> None:
    """Bytes that leave no room for the word behind them, or just enough."""
    with ends(group) as both:
        full = _native.MESSAGE_BYTES - 48 - 16  # less a message's head and a span's
        for turn, size in enumerate(range(full - 40, full + 40), start=1):
            data = np.full(size, turn, np.uint8)
            for peer in both.peers:
                both.put(peer, both.inbox(both.rank, size), data)
                both.signal(peer, turn)
            for peer in both.peers:
                both.await_word(peer, turn)
                assert (both.bytes[both.inbox(peer, size) :][:size] == turn).all()
                both.signal(peer, turn, index=both.size + both.rank)
            for peer in both.peers:
                both.await_word(both.size + peer, turn)


def killed_in_traffic(group: Any, victim: int) -> list[int]:
    """A rank is killed while all send as fast as they can, and some wait for it to take more."""
    both = Ends(group, MB)
    data = np.zeros(MB, np.uint8)
    both.group.all_gather(None)
    end = time.monotonic() + 1.0
    while time.monotonic() < end or not both.link.dead(victim):
        for peer in both.peers:
            both.put(peer, both.inbox(both.rank, MB), data)
            both.signal(peer, 1)
        if both.rank == victim and time.monotonic() > end - 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        assert time.monotonic() < end + 10
    dead = [peer for peer in both.peers if both.link.dead(peer)]
    for peer in both.peers:
        both.signal(peer, 2)
    for peer in both.peers:
        if peer != victim:
            both.await_word(peer, 2)
    # So that all see only the victim dead, none closes before all have said that they looked.
    for peer in both.peers:
        both.signal(peer, 3)
    for peer in both.peers:
        if peer != victim:
            both.await_word(peer, 3)
    both.link.close(10**9)
    return dead


def close_in_traffic(group: Any, rounds: int) -> int:
    """Links opened again and again, that some ranks close while all send; how many this one did."""
    os.environ["DEEP_LL_TIMEOUT_S"] = "5"
    rng, num_early = random.Random(os.getpid()), 0
    data = np.zeros(MB, np.uint8)
    for _ in range(rounds):
        both = Ends(group, MB)
        is_early = rng.random() < 0.4
        num_early += is_early
        end = time.monotonic() + (rng.random() * 0.05 if is_early else 0.1)
        while time.monotonic() < end:
            for peer in both.peers:
                size = rng.choice([100, 60 << 10, MB])
                both.put(peer, both.inbox(both.rank, size), data[:size])
                both.signal(peer, 1)
        both.link.close(rng.choice([0, 10**6, 10**9]))
    return num_early


def passive_target(group: Any, busy_s: float) -> float:
    """How long after it was sent a word is in the heap of a rank that computes all the time."""
    with ends(group) as both:
        if both.rank == 0:
            time.sleep(busy_s / 2)
            data = np.full(MB, 7, np.uint8)
            both.put(1, both.inbox(0, MB), data)
            both.signal(1, time.monotonic_ns())
            return 0.0
        deadline = time.monotonic() + busy_s
        while time.monotonic() < deadline and both.words[0] == 0:
            sum(range(100))
        took_s = (time.monotonic_ns() - int(both.words[0])) / 1e9
        assert (both.bytes[both.inbox(0, MB) :][:MB] == 7).all()
        return took_s


def both_send_first(group: Any, num_bytes: int) -> bool:
    """All send much to each other before anybody looks at what came."""
    with ends(group, num_bytes) as both:
        data = np.arange(num_bytes // 8, dtype=np.uint64) + both.rank
        for peer in both.peers:
            both.put(peer, both.inbox(both.rank, num_bytes), data)
            both.signal(peer, 1)
        for peer in both.peers:
            both.await_word(peer, 1)
            start = both.inbox(peer, num_bytes)
            found = both.bytes[start : start + num_bytes].view(np.uint64)
            assert (found == data - both.rank + peer).all()
    return True


def threads_at_once(group: Any, num_threads: int, rounds: int) -> None:
    """Threads of a rank put and signal side by side, each to places of its own."""
    with ends(group) as both:
        part = both.inbox_bytes // num_threads

        def work(thread: int) -> None:
            for turn in range(1, rounds + 1):
                data = np.full(part - turn % 64, turn % 251, np.uint8)
                for peer in both.peers:
                    start = both.inbox(both.rank, both.inbox_bytes) + thread * part
                    both.put(peer, start, data)
                    both.signal(peer, turn, index=both.rank * num_threads + thread)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for peer in both.peers:
            for thread in range(num_threads):
                both.await_word(peer * num_threads + thread, rounds)
                start = both.inbox(peer, both.inbox_bytes) + thread * part
                assert (both.bytes[start : start + part - rounds % 64] == rounds % 251).all()


def killed_peer(group: Any, victim: int) -> dict[str, Any]:
    """One rank is killed: who sees it, how fast, and what still works."""
    both = Ends(group, MB)
    others = [peer for peer in both.peers if peer != victim]
    both.group.all_gather(None)
    if both.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    while not both.link.dead(victim) and time.monotonic() < start + 10:
        time.sleep(0.001)
    noticed_s = time.monotonic() - start
    data = np.full(MB, 5, np.uint8)
    for peer in [victim, *others]:  # what goes to the dead goes nowhere, and does not block
        for _ in range(8):
            both.put(peer, both.inbox(both.rank, MB), data)
        both.signal(peer, 1)
    for peer in others:
        both.await_word(peer, 1)
        assert (both.bytes[both.inbox(peer, MB) :][:MB] == 5).all()
    dead = [peer for peer in both.peers if both.link.dead(peer)]
    # The victim cannot meet the others; words can.
    for peer in others:
        both.signal(peer, 2)
    for peer in others:
        both.await_word(peer, 2)
    start = time.monotonic()
    both.link.close(10**9)
    return {"noticed_s": noticed_s, "dead": dead, "closing_s": time.monotonic() - start}


def stalled_peer(group: Any, num_bytes: int) -> dict[str, Any]:
    """Rank 1 is stopped, not dead: nothing is refused, and nothing is taken."""
    os.environ["DEEP_LL_TIMEOUT_S"] = "0.5"
    try:
        both = Ends(group, num_bytes)
    finally:
        del os.environ["DEEP_LL_TIMEOUT_S"]
    pids = both.group.all_gather(os.getpid())
    both.group.all_gather(None)
    told: dict[str, Any] = {}
    if both.rank == 0:
        data = np.zeros(num_bytes, np.uint8)
        start = time.monotonic()
        os.kill(pids[1], signal.SIGSTOP)
        try:
            both.put(1, both.inbox(0, num_bytes), data)
            both.signal(1, 1)
            told = {"sending_s": time.monotonic() - start, "dead": both.link.dead(1)}
            start = time.monotonic()
            both.link.close(5 * 10**8)
            told["closing_s"] = time.monotonic() - start
        finally:
            os.kill(pids[1], signal.SIGCONT)
    both.group.all_gather(None)
    told["word"] = int(both.words[0])
    both.link.close(10**9)
    return told


def with_environment(group: Any, variables: dict[str, str]) -> str:
    """What opening a link says, with these variables in the environment."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with ends(group) as both:
            for peer in both.peers:
                both.signal(peer, 3)
            for peer in both.peers:
                both.await_word(peer, 3)
        for name, value in variables.items():  # as other libraries see them
            assert _C.getenv(name.encode()) == value.encode()
        return "open"
    except (LinkUnavailable, PeerError) as error:
        return str(error)
    finally:
        os.environ.clear()
        os.environ.update(before)


def listening(group: Any) -> set[str]:
    """The addresses that this process listens on, in the kernel's notation."""
    with ends(group):
        own = set()
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(fd.readlink().name)
        tables = [Path(f"/proc/self/net/{table}") for table in ("tcp", "tcp6")]
        lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
        # Columns: local address, state (0A: listening), inode.
        return {f[1].split(":")[0] for f in lines if f[3] == "0A" and f"socket:[{f[9]}]" in own}


def stranger(group: Any, messages: list[bytes]) -> tuple[bool, list[dict[str, int]], int]:
    """The last rank is no member of the link: it connects to rank 0 and sends it bytes."""
    members = as_group(group)
    heap = torch.zeros(INBOXES + MB, dtype=torch.uint8)
    place = (heap.data_ptr(), heap.numel())
    secret = bytes(range(32)) if members.rank < members.size - 1 else bytes(32)
    library = os.environ.get("DEEP_LL_LIBUCP") or _library()
    link = _native.UcxLink(members.rank, members.size, *place, secret, "lo", library)
    addresses = members.all_gather(link.address())
    num_members = members.size - 1
    if members.rank < num_members:
        others = [peer for peer in range(num_members) if peer != members.rank]
        for peer in others:
            link.connect(peer, addresses[peer])
        assert link.meet(others, 10**10) == []
    else:
        link.connect(0, addresses[0])
        for message in messages:
            link.send_raw(0, message)
        link.put(0, INBOXES, heap.data_ptr(), 100)  # well formed, of another secret
        link.signal(0, WORDS, 1)
    members.all_gather(None)
    time.sleep(0.2)
    if 0 < members.rank < num_members:
        link.signal(0, WORDS + 8, 2)
    words = heap.numpy()[WORDS:INBOXES].view(np.uint64)
    deadline = time.monotonic() + 5
    while members.rank == 0 and words[1] != 2 and time.monotonic() < deadline:
        link.progress()
    untouched = not heap.numpy()[INBOXES:].any() and words[0] == 0
    stats = [link.stats(peer) for peer in range(members.size)]
    members.all_gather(None)
    dropped = link.dropped
    link.close(10**9)
    return bool(untouched and (members.rank != 0 or words[1] == 2)), stats, dropped


def _library() -> str:
    from deep_ll.runtime.link import library_path

    return library_path("")
