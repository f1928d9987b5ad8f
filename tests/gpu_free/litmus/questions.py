"""What deep_ll asks the PTX memory model: signals between GPUs. A rank is a GPU.

Here and in the other files x, z are rows, stored and loaded weakly; y, w are signals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from litmus.program import Instruction, Thread, fence, ld, on, st

ME, PEER = "g0.b0", "g1.b0"
REL, ACQ, RLX = "release.sys", "acquire.sys", "relaxed.sys"
ROW = ld("weak", "x", "row")


@dataclass(frozen=True)
class Question:
    text: str  # the program, in a few words
    outcome: str  # the failure: values of registers and locations
    threads: tuple[Thread, ...]
    why: str
    allowed: bool


forbidden = partial(Question, allowed=False)
allowed = partial(Question, allowed=True)


def told(tell: tuple[Instruction, ...], look: tuple[Instruction, ...]) -> tuple[Thread, ...]:
    """A row, then a word; the peer looks at the word, then at the row."""
    return (on(ME, st("weak", "x"), *tell), on(PEER, *look, ROW))


def asked_once(store: str, load: str) -> tuple[Thread, ...]:
    return told((st(store, "y"),), (ld(load, "y", "seen"),))


def polled(*after: Instruction, poll: str = RLX) -> tuple[Thread, ...]:
    return told((st(REL, "y"),), (ld(poll, "y", "seen"), *after))


def two_epochs(second: str, *look: Instruction) -> tuple[Thread, ...]:
    writer = on(ME, st("weak", "x"), st(REL, "y", 1), st("weak", "z"), st(second, "y", 2))
    return (writer, on(PEER, *look, ROW, ld("weak", "z", "next")))


def two_words(asked: str, quiet: str = REL) -> tuple[Thread, ...]:
    """The peer loads a row that came, tells `w` (consumed), then `y` (counts)."""
    other = "w" if asked == "y" else "y"
    looks = (ld(ACQ, asked, "seen"), ld(RLX, other, "other"), st("weak", "x"))
    return (on(PEER, ROW, st(quiet, "w"), st(REL, "y")), on(ME, *looks))


def reused(tell: str, wait: str) -> tuple[Thread, ...]:
    return (on(PEER, ROW, st(tell, "y")), on(ME, ld(wait, "y", "seen"), st("weak", "x")))


def both_ways(*between: Instruction) -> tuple[Thread, ...]:
    return (
        on(ME, st(REL, "y"), *between, ld(ACQ, "w", "mine")),
        on(PEER, st(REL, "w"), *between, ld(ACQ, "y", "theirs")),
    )


AGAIN = ld(ACQ, "y", "again")
STALE = "seen=1 row=0"
FENCED = (fence("acq_rel.sys"), st(RLX, "y"))
# Program, failure, reason: easier to compare than a line for each argument.
# fmt: off
SIGNALS = {
    "publish, wait": (
        forbidden(
            "`st.release.sys`; `ld.acquire.sys`",
            STALE, asked_once(REL, ACQ),
            "release and acquire, both scopes hold both GPUs",
        ),
        allowed(
            "`st.relaxed.sys`; `ld.acquire.sys`",
            STALE, asked_once(RLX, ACQ),
            "nothing orders the row before the word",
        ),
        allowed(
            "`st.release.gpu`; `ld.acquire.sys`",
            STALE, asked_once("release.gpu", ACQ),
            "the writer's scope leaves the reader out",
        ),
        allowed(
            "`st.release.sys`; `ld.acquire.gpu`",
            STALE, asked_once(REL, "acquire.gpu"),
            "the reader's scope leaves the writer out",
        ),
        forbidden(
            "`fence.acq_rel.sys`, `st.relaxed.sys`; `ld.acquire.sys`",
            STALE, told(FENCED, (ld(ACQ, "y", "seen"),)),
            "a fence and a strong store are a release too; not needed",
        ),
    ),
    "poll": (
        allowed(
            "`ld.relaxed.sys` until seen, no more",
            STALE, polled(),
            "a relaxed poll orders nothing after it",
        ),
        forbidden(
            "`ld.relaxed.sys` until seen, then one `ld.acquire.sys` of the same word",
            STALE, polled(AGAIN),
            "a strong read followed by an acquire of the same word is an acquire pattern: as "
            "strong as acquiring in each look",
        ),
        forbidden(
            "the same; the acquire reads an older word than the poll",
            "seen=1 again=0", polled(AGAIN),
            "two strong reads of one word never go back",
        ),
        allowed(
            "the same with a poll of `.gpu`",
            "seen=1 again=0 row=0", polled(AGAIN, poll="relaxed.gpu"),
            "that poll and the peer's store do not know each other: the acquire may miss the word",
        ),
        forbidden(
            "`ld.relaxed.sys` until seen, then `fence.acq_rel.sys`",
            STALE, polled(fence("acq_rel.sys")),
            "also an acquire pattern",
        ),
        allowed(
            "`ld.relaxed.sys` until seen, then `ld.acquire.sys` of another word",
            STALE, polled(ld(ACQ, "w", "again")),
            "the pattern is one of one word",
        ),
    ),
    "epochs": (
        forbidden(
            "rows 1, release 1, rows 2, release 2; the reader acquires 2",
            "seen=2 row=0", two_epochs(REL, ld(ACQ, "y", "seen")),
            "a later epoch covers an earlier one: the writer's order",
        ),
        forbidden(
            "the same; rows 2",
            "seen=2 next=0", two_epochs(REL, ld(ACQ, "y", "seen")),
            "its own release",
        ),
        forbidden(
            "the same; a relaxed poll sees 1, the acquire sees 2",
            "seen=1 again=2 next=0", two_epochs(REL, ld(RLX, "y", "seen"), AGAIN),
            "what is acquired counts, not what was polled",
        ),
        forbidden(
            "release 1, then 2 told relaxed; rows 1",
            "seen=2 row=0", two_epochs(RLX, ld(ACQ, "y", "seen")),
            "a strong store after a release of the same word carries that release on",
        ),
        allowed(
            "the same; rows 2",
            "seen=2 next=0", two_epochs(RLX, ld(ACQ, "y", "seen")),
            "stored after that release",
        ),
    ),
    "slot reuse": (
        forbidden(
            "the reader loads, then `st.release.sys`; the writer `ld.acquire.sys`, overwrites",
            "seen=1 row=1", reused(REL, ACQ),
            "loads come before a release, stores after an acquire",
        ),
        allowed(
            "told relaxed",
            "seen=1 row=1", reused(RLX, ACQ),
            "the load may come after the word",
        ),
        allowed(
            "waited for relaxed",
            "seen=1 row=1", reused(REL, RLX),
            "the store may come before the word",
        ),
    ),
    "two words": (
        forbidden(
            "`consumed` released, then `counts` released; who acquires `counts` misses `consumed`",
            "seen=1 other=0", two_words("y"),
            "one word speaks for all before it",
        ),
        allowed(
            "the same; who acquires `consumed` misses `counts`",
            "seen=1 other=0", two_words("w"),
            "a word says nothing of later ones",
        ),
        forbidden(
            "`consumed` told relaxed, only `counts` acquired; overwritten too early",
            "seen=1 row=1", two_words("y", RLX),
            "would do, if nobody waited for `consumed` alone",
        ),
        allowed(
            "`consumed` told relaxed, only `consumed` acquired; overwritten too early",
            "seen=1 row=1", two_words("w", RLX),
            "`credit` waits for `consumed` alone: it must be a release",
        ),
    ),
    "each waits for the other": (
        allowed(
            "publish, then look at the peer's word; both miss",
            "mine=0 theirs=0", both_ways(),
            "no step of the protocol concludes from an absent word",
        ),
        allowed(
            "`fence.acq_rel.sys` in between",
            "mine=0 theirs=0", both_ways(fence("acq_rel.sys")),
            "release and acquire let a load pass a store",
        ),
        forbidden(
            "`fence.sc.sys` in between",
            "mine=0 theirs=0", both_ways(fence("sc.sys")),
            "what `__threadfence_system()` buys; nothing here needs it",
        ),
    ),
}
# fmt: on
