"""The receiving half of a link: what it refuses, and in which order words become visible."""

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpp import builds
from link_messages import SECRET, bad_messages, message

from deep_ll import _native

HEADER = _native.HEAP_HEADER_BYTES
HEAP_BYTES = HEADER + (1 << 16)
DATA = HEADER + 4096
BAD = bad_messages(HEAP_BYTES, HEADER)
FIRST_NUMBERS = (0, 2**32 - 20, 2**64 - 20, 2**64 - 1)


class Receiver:
    """Rank 0 of 4, with a heap between two fences."""

    def __init__(self, first_number: int = 0) -> None:
        self.memory = np.zeros(HEAP_BYTES + 2 * HEADER, np.uint8)
        start = -self.memory.ctypes.data % HEADER
        self.heap = self.memory[start : start + HEAP_BYTES]
        self.words = self.heap[HEADER:DATA].view(np.uint64)
        address = self.heap.ctypes.data
        self.landing = _native.LinkLanding(0, 4, address, HEAP_BYTES, SECRET, first_number)

    def dropped(self) -> int:
        return self.landing.dropped + sum(self.landing.stats(r)["dropped"] for r in range(4))

    def arrivals(self) -> int:
        """How often the doorbell rang."""
        return int(self.heap[192:200].view(np.uint64)[0])


@pytest.mark.parametrize("what", BAD)
def test_bad_message_leaves_no_trace(what: str) -> None:
    receiver = Receiver()
    assert not receiver.landing.land(BAD[what])
    assert receiver.dropped() == 1
    assert not receiver.memory.any()
    # What comes next from the same sender is still welcome.
    assert receiver.landing.land(message(0, [(DATA, b"fine")], [(HEADER, 9)]))
    assert receiver.heap[DATA : DATA + 4].tobytes() == b"fine"
    assert receiver.words[0] == 9


def test_edges_of_the_heap_belong_to_it() -> None:
    receiver = Receiver()
    spans = [(HEADER, b"a"), (HEAP_BYTES - 1, b"z"), (HEAP_BYTES, b"")]
    assert receiver.landing.land(message(0, spans, [(HEAP_BYTES - 8, 1 << 63 | 5)]))
    assert receiver.heap[HEADER] == ord("a")
    assert receiver.heap[-8:].view(np.uint64)[0] == 1 << 63 | 5


def test_repeated_message_is_refused() -> None:
    receiver = Receiver()
    for number in (0, 2):  # one that is done, one that waits
        assert receiver.landing.land(message(number, words=[(HEADER, number)]))
        assert not receiver.landing.land(message(number, [(DATA, b"again")]))
    assert receiver.landing.stats(1)["dropped"] == 2
    assert not receiver.heap[DATA:].any()


def test_overtaking_message_is_not_counted_for_a_missing_one() -> None:
    """Three messages have landed, and number 1 promises that two did before; but not which."""
    receiver = Receiver()
    for number in (1, 2, 3):
        assert receiver.landing.land(message(number, words=[(HEADER, number)]))
        assert receiver.words[0] == 0
    assert receiver.landing.stats(1)["held_back"] == 3
    assert receiver.landing.land(message(0))
    assert receiver.words[0] == 3
    assert receiver.landing.stats(1)["held_back"] == 0


def test_sender_that_begins_anew() -> None:
    """Words that waited for its past never come, and nothing of its past lands any more."""
    receiver, first = Receiver(), 1 << 60
    receiver.landing.land(message(0, words=[(HEADER, 1)]))
    receiver.landing.land(message(2, words=[(HEADER, 3)]))
    receiver.landing.begin(1, first)
    assert receiver.landing.stats(1)["held_back"] == 0
    for number in (0, 1, 2, 3):
        assert not receiver.landing.land(message(number, [(DATA, b"past")], [(HEADER, 9)]))
    assert receiver.landing.land(message(first, [(DATA, b"now!")], [(HEADER, 4)]))
    assert receiver.heap[DATA : DATA + 4].tobytes() == b"now!"
    assert receiver.words[0] == 4
    assert receiver.landing.stats(1)["dropped"] == 4


def test_one_message_rings_once() -> None:
    receiver = Receiver()
    receiver.landing.land(message(0, words=[(HEADER + 8 * i, i + 1) for i in range(5)]))
    assert receiver.words[:5].tolist() == [1, 2, 3, 4, 5]
    assert receiver.arrivals() == 1
    receiver.landing.land(message(1, [(DATA, b"no words, no ring")]))
    assert receiver.arrivals() == 1


@pytest.mark.parametrize("first", FIRST_NUMBERS)
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_messages(seed: int, first: int) -> None:
    """A word is visible exactly when its message and all before it have landed."""
    rng = random.Random(seed)
    receiver = Receiver(first)
    streams = {sender: list(range(100)) for sender in (1, 2, 3)}
    queue = [(sender, i) for sender, numbers in streams.items() for i in numbers]
    queue.sort(key=lambda entry: entry[1] + rng.choice((0, 2, 30, 120)) * rng.random())
    landed: dict[int, set[int]] = {sender: set() for sender in streams}
    for sender, i in queue:
        at = DATA + (sender * 100 + i) * 8
        spans = [(at, f"{sender:3d}{i:5d}".encode())]
        # Every third message has no word.
        words = [(HEADER + 8 * sender, i + 1)] if i % 3 else []
        number = (first + i) % 2**64
        assert receiver.landing.land(message(number, spans, words, sender=sender))
        assert receiver.heap[at : at + 8].tobytes() == spans[0][1]
        landed[sender].add(i)
        prefix = next(n for n in range(101) if n not in landed[sender])
        expected = max((n + 1 for n in range(prefix) if n % 3), default=0)
        assert receiver.words[sender] == expected
    assert receiver.dropped() == 0
    assert all(receiver.landing.stats(s)["held_back"] == 0 for s in streams)


def test_random_bytes_harm_nothing() -> None:
    rng = random.Random(1)
    receiver = Receiver()
    for _ in range(5000):
        good = bytearray(message(0, [(DATA, b"x" * 20), (DATA + 99, b"y")], [(HEADER, 1)]))
        for _ in range(rng.randint(1, 4)):
            good[rng.randrange(len(good))] = rng.randrange(256)
        receiver.landing.land(bytes(good[: rng.choice((len(good), rng.randrange(len(good))))]))
    before = receiver.heap.ctypes.data - receiver.memory.ctypes.data
    assert not receiver.memory[:before].any()
    assert not receiver.memory[before + HEAP_BYTES :].any()


def test_under_the_address_sanitizer(tmp_path: Path) -> None:
    problem = builds.why_not("address", tmp_path)
    if problem is not None:
        pytest.skip(problem)
    here = Path(__file__).parent
    sources = [builds.CSRC / "symm" / f"{name}.cpp" for name in ("landing", "message", "doorbell")]
    sources += [builds.CSRC / "core/check.cpp", here / "link_cpp/landing.cpp"]
    program = tmp_path / "landing"
    flags = [*builds.COMMON, *builds.SANITIZERS["address"], f"-I{builds.CSRC}"]
    command = [*builds.compiler(), *flags, *map(str, sources), "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert shutil.which(str(program))
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stdout + ran.stderr
