"""Tests whose answers under PTX are known: they test the checker, not deep_ll."""

from __future__ import annotations

from dataclasses import dataclass

from litmus.program import Thread, add, bar, fence, ld, on, st

A, B, C, D = "g0.b0", "g1.b0", "g2.b0", "g3.b0"  # four GPUs
REL, ACQ, RLX = "release.sys", "acquire.sys", "relaxed.sys"


@dataclass(frozen=True)
class Classic:
    name: str
    allowed: bool
    outcome: str
    threads: tuple[Thread, ...]


def message_passing(
    store: str, load: str, reader: str = B, data: str = "weak"
) -> tuple[Thread, ...]:
    return (
        on(A, st(data, "x"), st(store, "y")),
        on(reader, ld(load, "y", "flag"), ld(data, "x", "data")),
    )


def store_buffering(how: str, *between) -> tuple[Thread, ...]:
    return (
        on(A, st(how, "x"), *between, ld(RLX, "y", "a")),
        on(B, st(how, "y"), *between, ld(RLX, "x", "b")),
    )


def load_buffering(load: str, store: str) -> tuple[Thread, ...]:
    return (on(A, ld(load, "x", "a"), st(store, "y")), on(B, ld(load, "y", "b"), st(store, "x")))


def copied_around() -> tuple[Thread, ...]:
    return (
        on(A, ld(RLX, "x", "a"), st(RLX, "y", "a")),
        on(B, ld(RLX, "y", "b"), st(RLX, "x", "b")),
    )


def readers_of_two(load: str, store: str, *between) -> tuple[Thread, ...]:
    return (
        on(A, st(store, "x")),
        on(B, st(store, "y")),
        on(C, ld(load, "x", "a"), *between, ld(load, "y", "b")),
        on(D, ld(load, "y", "c"), *between, ld(load, "x", "d")),
    )


def write_to_read(load: str, store: str, first: str = RLX) -> tuple[Thread, ...]:
    return (
        on(A, st(RLX, "x")),
        on(B, ld(first, "x", "a"), st(store, "y")),
        on(C, ld(load, "y", "b"), ld(RLX, "x", "c")),
    )


def three_links(store: str, load: str) -> tuple[Thread, ...]:
    return (
        on(A, st("weak", "x"), st(store, "y")),
        on(B, ld(load, "y", "a"), st(store, "z")),
        on(C, ld(load, "z", "b"), ld("weak", "x", "c")),
    )


def overwritten(store: str, load: str) -> tuple[Thread, ...]:
    return (on(A, st(RLX, "x", 2), st(store, "y")), on(B, ld(load, "y", "a"), st(RLX, "x", 1)))


def read_too_old(how: str, *between) -> tuple[Thread, ...]:
    return (
        on(A, st(RLX, "x"), *between, st(how, "y", 1)),
        on(B, st(how, "y", 2), *between, ld(RLX, "x", "a")),
    )


def two_writes_each(how: str, *between) -> tuple[Thread, ...]:
    return (
        on(A, st(how, "x", 1), *between, st(how, "y", 2)),
        on(B, st(how, "y", 1), *between, st(how, "x", 2)),
    )


def read_twice(store: str, load: str, reader: str = B) -> tuple[Thread, ...]:
    return (on(A, st(store, "x")), on(reader, ld(load, "x", "a"), ld(load, "x", "b")))


def counted(how: str, other: str = B) -> tuple[Thread, ...]:
    return (on(A, add(how, "x", 1, "a")), on(other, add(how, "x", 1, "b")))


def across_barrier(*meet, block: str = "g0.b0") -> tuple[Thread, ...]:
    return (on(A, st("weak", "x"), *meet), on(block, *meet, ld("weak", "x", "a")))


def polled_then_acquired() -> tuple[Thread, ...]:
    """The acquire reads what a third thread wrote."""
    looks = (ld(RLX, "y", "a"), ld(ACQ, "y", "b"), ld("weak", "x", "c"))
    return (on(A, st("weak", "x"), st(REL, "y", 1)), on(B, *looks), on(C, st(RLX, "y", 2)))


SC, ACQ_REL = fence("sc.sys"), fence("acq_rel.sys")
STALE, LATE, FOUR = "flag=1 data=0", "a=1 b=1 c=0", "a=1 b=0 c=1 d=0"
CLASSICS = (
    Classic("MP", False, STALE, message_passing(REL, ACQ)),
    Classic("MP seen", True, "flag=1 data=1", message_passing(REL, ACQ)),
    Classic("MP not yet", True, "flag=0 data=1", message_passing(REL, ACQ)),
    Classic("MP relaxed", True, STALE, message_passing(RLX, RLX, data=RLX)),
    Classic("MP relaxed release", True, STALE, message_passing(RLX, ACQ)),
    Classic("MP relaxed acquire", True, STALE, message_passing(REL, RLX)),
    Classic("MP gpu, two GPUs", True, STALE, message_passing("release.gpu", "acquire.gpu")),
    Classic(
        "MP gpu, one GPU", False, STALE, message_passing("release.gpu", "acquire.gpu", "g0.b1")
    ),
    Classic(
        "MP cta, two blocks", True, STALE, message_passing("release.cta", "acquire.cta", "g0.b1")
    ),
    Classic("MP cta, one block", False, STALE, message_passing("release.cta", "acquire.cta", A)),
    Classic("MP mixed", True, STALE, message_passing("release.gpu", ACQ)),
    Classic("MP acquire pattern", False, "a=1 b=2 c=0", polled_then_acquired()),
    Classic("MP no pattern", True, "a=2 b=2 c=0", polled_then_acquired()),
    Classic("SB", True, "a=0 b=0", store_buffering(RLX)),
    Classic("SB release, acquire", True, "a=0 b=0", store_buffering(REL)),
    Classic("SB fence.acq_rel", True, "a=0 b=0", store_buffering(RLX, ACQ_REL)),
    Classic("SB fence.sc", False, "a=0 b=0", store_buffering(RLX, SC)),
    Classic("SB fence.sc.gpu", True, "a=0 b=0", store_buffering(RLX, fence("sc.gpu"))),
    Classic("LB relaxed", True, "a=1 b=1", load_buffering(RLX, RLX)),
    Classic("LB acquire, release", False, "a=1 b=1", load_buffering(ACQ, REL)),
    Classic("LB copied: thin air", False, "a=1 b=1", copied_around()),
    Classic("CoRR", False, "a=1 b=0", read_twice(RLX, RLX)),
    Classic("CoRR weak", True, "a=1 b=0", read_twice("weak", "weak")),
    Classic("CoRR gpu, two GPUs", True, "a=1 b=0", read_twice("relaxed.gpu", "relaxed.gpu")),
    Classic("CoWW", False, "x=1", (on(A, st("weak", "x", 1), st("weak", "x", 2)),)),
    Classic("CoRW", False, "a=1", (on(A, ld("weak", "x", "a"), st("weak", "x")),)),
    Classic("CoWR", False, "a=0", (on(A, st("weak", "x"), ld("weak", "x", "a")),)),
    Classic("IRIW acquire", True, FOUR, readers_of_two(ACQ, REL)),
    Classic("IRIW fence.acq_rel", True, FOUR, readers_of_two(RLX, RLX, ACQ_REL)),
    Classic("IRIW fence.sc", False, FOUR, readers_of_two(RLX, RLX, SC)),
    Classic("WRC", False, LATE, write_to_read(ACQ, REL)),
    Classic("WRC relaxed", True, LATE, write_to_read(RLX, RLX)),
    Classic("WRC weak first read", True, LATE, write_to_read(ACQ, REL, "weak")),
    Classic("ISA2", False, LATE, three_links(REL, ACQ)),
    Classic("ISA2 relaxed", True, LATE, three_links(RLX, ACQ)),
    Classic("ISA2 gpu", True, LATE, three_links("release.gpu", "acquire.gpu")),
    Classic("S", False, "a=1 x=2", overwritten(REL, ACQ)),
    Classic("S relaxed", True, "a=1 x=2", overwritten(RLX, RLX)),
    Classic("R", True, "a=0 y=2", read_too_old(REL)),
    Classic("R fence.acq_rel", True, "a=0 y=2", read_too_old(RLX, ACQ_REL)),
    Classic("R fence.sc", False, "a=0 y=2", read_too_old(RLX, SC)),
    Classic("2+2W", True, "x=1 y=1", two_writes_each(REL)),
    Classic("2+2W fence.acq_rel", True, "x=1 y=1", two_writes_each(RLX, ACQ_REL)),
    Classic("2+2W fence.sc", False, "x=1 y=1", two_writes_each(RLX, SC)),
    Classic("atomic", False, "a=0 b=0", counted(RLX)),
    Classic("atomic gpu, two GPUs", True, "a=0 b=0", counted("relaxed.gpu")),
    Classic("atomic gpu, one GPU", False, "a=0 b=0", counted("relaxed.gpu", "g0.b1")),
    Classic("barrier", False, "a=0", across_barrier(bar("all"))),
    Classic("no barrier", True, "a=0", across_barrier()),
    Classic("barriers of two blocks", True, "a=0", across_barrier(bar("all"), block="g0.b1")),
)
