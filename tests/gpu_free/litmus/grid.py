"""What deep_ll asks the PTX memory model: many threads of one GPU speak through one word.

g0 is this rank, b0 the block that publishes and waits; g1, g2 are peers.
"""

from __future__ import annotations

from litmus.program import Instruction, Thread, add, bar, ld, on, st
from litmus.questions import ACQ, PEER, REL, ROW, allowed, forbidden

MEET = bar("team")
SEES = on(PEER, ld(ACQ, "y", "seen"), ROW)
STALE = "counted=1 seen=1 row=0"


def lanes(*meet: Instruction) -> tuple[Thread, ...]:
    return (on("g0.b0", st("weak", "x"), *meet), on("g0.b0", *meet, st(REL, "y")), SEES)


def lanes_and_peers() -> tuple[Thread, ...]:
    """One lane stores to two peers; two others publish, one to each."""
    return (
        on("g0.b0", st("weak", "x"), st("weak", "z"), MEET),
        on("g0.b0", MEET, st(REL, "y")),
        on("g0.b0", MEET, st(REL, "w")),
        SEES,
        on("g2.b0", ld(ACQ, "w", "seen2"), ld("weak", "z", "row2")),
    )


def grid(
    count: str = "release.gpu",
    look: tuple[Instruction, ...] = (ld("relaxed.gpu", "n", "counted"), ld("acquire.gpu", "n", "")),
    publish: str = REL,
    meet: tuple[Instruction, ...] = (MEET,),
    gather: tuple[Instruction, ...] = (bar("master"),),
) -> tuple[Thread, ...]:
    """Block 1 stores and is counted; block 0 sees the count and publishes."""
    return (
        on("g0.b1", st("weak", "x"), *meet),
        on("g0.b1", *meet, add(count, "n")),
        on("g0.b0", *look, *gather),
        on("g0.b0", *gather, st(publish, "y")),
        SEES,
    )


def last_block(second: str) -> tuple[Thread, ...]:
    """Two blocks are counted; the one that comes last publishes."""
    return (
        on("g0.b1", st("weak", "x"), add("release.gpu", "n")),
        on("g0.b2", add(second, "n", 1, "counted"), st(REL, "y")),
        SEES,
    )


def three_blocks(second: str) -> tuple[Thread, ...]:
    return (
        on("g0.b1", st("weak", "x"), add("release.gpu", "n")),
        on("g0.b2", add(second, "n")),
        on("g0.b0", ld("acquire.gpu", "n", "counted"), st(REL, "y")),
        SEES,
    )


def handed_on(gate: str, wait: str, *meet: Instruction) -> tuple[Thread, ...]:
    """One lane of block 0 acquires the peer's word; block 1 reads the row."""
    return (
        on(PEER, st("weak", "x"), st(REL, "y")),
        on("g0.b0", ld(ACQ, "y", "seen"), *meet),
        on("g0.b0", *meet, st(gate, "gate")),
        on("g0.b1", ld(wait, "gate", "open"), ROW),
    )


def lane_per_source() -> tuple[Thread, ...]:
    return (
        on(PEER, st("weak", "x"), st(REL, "y")),
        on("g2.b0", st("weak", "z"), st(REL, "w")),
        on("g0.b0", ld(ACQ, "y", "seen"), MEET, ld("weak", "z", "row2")),
        on("g0.b0", ld(ACQ, "w", "seen2"), MEET, ROW),
    )


def grid_reuse(count: str, gate: str = "release.gpu") -> tuple[Thread, ...]:
    """The reader: block 1 loads, block 0 tells. The writer: block 0 waits, block 1 stores."""
    return (
        on("g1.b1", ROW, add(count, "n")),
        on("g1.b0", ld("acquire.gpu", "n", "counted"), st(REL, "y")),
        on("g0.b0", ld(ACQ, "y", "seen"), st(gate, "gate")),
        on("g0.b1", ld("acquire.gpu", "gate", "open"), st("weak", "x")),
    )


GATE = "seen=1 open=1 row=0"
REUSE = "counted=1 seen=1 open=1 row=1"
# Program, failure, reason: easier to compare than a line for each argument.
# fmt: off
TEAMS = {
    "one team": (
        forbidden(
            "lanes store; `bar.sync` or `__syncwarp`; one lane publishes",
            "seen=1 row=0", lanes(MEET),
            "the barrier orders the lanes, release is cumulative",
        ),
        allowed(
            "the same without the barrier",
            "seen=1 row=0", lanes(),
            "a lane speaks only for itself",
        ),
        forbidden(
            "one barrier, then a lane for each peer publishes; first peer",
            "seen=1 row=0", lanes_and_peers(),
            "each of them has the barrier behind it",
        ),
        forbidden(
            "the same; second peer",
            "seen2=1 row2=0", lanes_and_peers(),
            "so one barrier serves all peers",
        ),
        forbidden(
            "a lane for each source acquires; barrier; a lane reads the other's rows",
            "seen=1 seen2=1 row2=0", lane_per_source(),
            "acquiring is cumulative too",
        ),
    ),
    "grid barrier": (
        forbidden(
            "rows; barrier; `red.release.gpu`; `ld.relaxed.gpu`, `ld.acquire.gpu`; barrier; "
            "`st.release.sys`",
            STALE, grid(),
            "`.gpu` is enough before the one `.sys` publish",
        ),
        allowed(
            "counted with `relaxed`",
            STALE, grid("relaxed.gpu"),
            "the count does not speak for the rows",
        ),
        allowed(
            "counted with `.cta`",
            STALE, grid("release.cta"),
            "the scope ends at the block",
        ),
        allowed(
            "polled with `relaxed` alone",
            STALE, grid(look=(ld("relaxed.gpu", "n", "counted"),)),
            "the publisher has acquired nothing",
        ),
        allowed(
            "published with `.gpu`",
            STALE, grid(publish="release.gpu"),
            "the peer is not in the scope",
        ),
        allowed(
            "no barrier before the count",
            STALE, grid(meet=()),
            "the counting lane speaks only for itself",
        ),
        allowed(
            "no barrier before the publish",
            STALE, grid(gather=()),
            "the publishing lane has acquired nothing",
        ),
        forbidden(
            "the last block to be counted (`atom.acq_rel.gpu`) publishes",
            STALE, last_block("acq_rel.gpu"),
            "its add reads the other's release",
        ),
        allowed(
            "the same with `atom.release.gpu`",
            STALE, last_block("release.gpu"),
            "it releases, but acquires nothing",
        ),
        forbidden(
            "two blocks are counted; the acquire reads the sum",
            "counted=2 seen=1 row=0", three_blocks("relaxed.gpu"),
            "adds in between hand a release on, relaxed ones too",
        ),
    ),
    "acquire handed on": (
        forbidden(
            "acquire `.sys`; barrier; `st.release.gpu`; `ld.acquire.gpu` in another block",
            GATE, handed_on("release.gpu", "acquire.gpu", MEET),
            "causality is transitive over scopes",
        ),
        allowed(
            "the gate relaxed",
            GATE, handed_on("relaxed.gpu", "acquire.gpu", MEET),
            "the other block has nothing to go by",
        ),
        allowed(
            "waited for relaxed",
            GATE, handed_on("release.gpu", "relaxed.gpu", MEET),
            "the same from the other side",
        ),
        allowed(
            "no barrier before the gate",
            GATE, handed_on("release.gpu", "acquire.gpu"),
            "the lane that opens it has acquired nothing",
        ),
    ),
    "slot reuse by grids": (
        forbidden(
            "loads; count and publish as above; wait and gate as above; overwrite",
            REUSE, grid_reuse("release.gpu"),
            "the whole chain, for loads",
        ),
        allowed(
            "counted relaxed",
            REUSE, grid_reuse("relaxed.gpu"),
            "a load may come after the count",
        ),
        allowed(
            "the gate relaxed",
            REUSE, grid_reuse("release.gpu", "relaxed.gpu"),
            "a store may come before the gate",
        ),
    ),
}
# fmt: on
