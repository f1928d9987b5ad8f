"""What deep_ll asks the PTX memory model: bulk copies, which go through the async proxy.

A bulk copy is a thread of its own: `start` is handed to it, and it hands back `loaded` (its source
was read: `wait_group.read`) and `written` (`wait_group`).
"""

from __future__ import annotations

from litmus.grid import MEET, SEES
from litmus.program import Instruction, Thread, fence, hand, ld, on, st, take
from litmus.questions import ACQ, PEER, REL, ROW, allowed, forbidden

TO_ASYNC = fence("proxy")


def bulk_copy(*seal: Instruction, wait: str = "written", staged: bool = True) -> tuple[Thread, ...]:
    """A lane fills shared memory s, another starts a bulk copy to the peer's row and publishes."""
    copy = (take("start"), ld("weak", "s", "copied"), hand("loaded"), st("weak", "x", "copied"))
    done = (take(wait),) if wait else ()
    # The end of a bulk copy is followed by a proxy fence of its own.
    return (
        on("g0.b0", st("weak", "s"), *seal, *((MEET,) if staged else ())),
        on("g0.b0", MEET, hand("start"), *done, st(REL, "y")),
        on("g0.b0", *copy, TO_ASYNC, hand("written"), proxy="async"),
        SEES,
    )


def refilled(*wait: Instruction) -> tuple[Thread, ...]:
    """The stage is filled again after the copy has loaded it."""
    copy = (take("start"), ld("weak", "s", "copied"), hand("loaded"))
    return (
        on("g0.b0", st("weak", "s", 1), TO_ASYNC, hand("start"), *wait, st("weak", "s", 2)),
        on("g0.b0", *copy, proxy="async"),
    )


def bulk_load(*seal: Instruction, theirs: tuple[Instruction, ...] = ()) -> tuple[Thread, ...]:
    """A peer's row, stored plainly, is loaded by a bulk copy here."""
    return (
        on(PEER, st("weak", "x"), *theirs, st(REL, "y")),
        on("g0.b0", ld(ACQ, "y", "seen"), *seal, hand("start")),
        on("g0.b0", take("start"), ROW, proxy="async"),
    )


# fmt: off
PROXIES = {
    "bulk copy out": (
        forbidden(
            "lanes fill the stage, `fence.proxy.async`, barrier, one lane copies",
            "copied=0", bulk_copy(TO_ASYNC),
            "the copy sees the stage through the fence",
        ),
        allowed(
            "the same without the fence",
            "copied=0", bulk_copy(),
            "another proxy may look past plain stores",
        ),
        allowed(
            "the same without the barrier",
            "copied=0", bulk_copy(TO_ASYNC, staged=False),
            "the starting lane speaks only for itself",
        ),
        forbidden(
            "`wait_group 0`, then publish",
            "copied=1 seen=1 row=0", bulk_copy(TO_ASYNC),
            "the wait says the rows are written",
        ),
        allowed(
            "`wait_group.read 0`, then publish",
            "copied=1 seen=1 row=0", bulk_copy(TO_ASYNC, wait="loaded"),
            "it only says the stage was read",
        ),
        allowed(
            "no wait, then publish",
            "copied=1 seen=1 row=0", bulk_copy(TO_ASYNC, wait=""),
            "the copy may still be under way",
        ),
        forbidden(
            "`wait_group.read 0`, then fill the stage again",
            "copied=2", refilled(take("loaded"), TO_ASYNC),
            "enough for the stage",
        ),
        allowed(
            "no wait, then fill the stage again",
            "copied=2", refilled(),
            "the copy may not have read it yet",
        ),
    ),
    "bulk copy in": (
        forbidden(
            "acquire, `fence.proxy.async`, load the peer's rows with a bulk copy",
            "seen=1 row=0", bulk_load(TO_ASYNC),
            "plain stores, then another proxy: the fence comes after the acquire",
        ),
        allowed(
            "the same without the fence",
            "seen=1 row=0", bulk_load(),
            "acquiring orders the generic proxy only",
        ),
        allowed(
            "the same, the fence in the peer before it publishes",
            "seen=1 row=0", bulk_load(theirs=(TO_ASYNC,)),
            "it is not in the block of the copy",
        ),
    ),
}
# fmt: on
