"""What the ranks of test_lies.py do: rank LIAR writes into the heaps of others what cannot be."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accidents import outcome
from cases import Case
from exchange import round_trip
from orders import Batch
from topologies import Topology, make_linked_buffer

LIAR = 1
CASE = Case(world=3, experts=6, tokens=8, max_tokens=8, hidden=128, topk=4)
HOOKED = Case(world=3, experts=6, tokens=8, max_tokens=8, hidden=128, topk=4, mode="hook")
FAR = 1000  # epochs
DESK_BYTES, GREETINGS, GREETING_BYTES = 128, 56, 24  # csrc/ep/window.hpp: Desk
ORIGIN_BYTES = 8
PATIENCE_S = 20.0


class Told(NamedTuple):
    """How the call of a rank ended, and the next one."""

    error: str
    text: str
    took_s: float
    again: str


class Pen:
    """Writes into the heap of a peer, by the way that leads there."""

    def __init__(self, buf: Any, peer: int) -> None:
        self.heap, self.window, self.peer = buf._session.heap, buf._session.window, peer
        self.is_linked = buf.paths()[peer].kind == "link"

    def put(self, offset: int, data: bytes) -> None:
        if self.is_linked:
            kept = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            self.heap.link.put(self.peer, offset, kept.data_ptr(), len(data))
        else:
            into = self.heap.maps[self.peer][offset : offset + len(data)]
            into.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def signal(self, index: int, word: int) -> None:
        """A word of the liar's desk, after all that was put."""
        offset = self.window.desks.offset + LIAR * DESK_BYTES + 8 * index
        if self.is_linked:
            self.heap.link.signal(self.peer, offset, word)
        else:
            self.put(offset, struct.pack("<Q", word))


def announce(pen: Pen, rows: int, epoch: int, told_epoch: int) -> None:
    """A dispatch with so many rows for each expert."""
    window, slot = pen.window, epoch % 2
    at = window.counts.offset + slot * window.counts.slot_bytes + LIAR * window.max_experts * 2
    pen.put(at, struct.pack("<H", rows) * CASE.experts)
    greeting = (CASE.experts, CASE.max_tokens, CASE.hidden, CASE.topk, 1, slot)
    desk = window.desks.offset + LIAR * DESK_BYTES
    pen.put(desk + GREETINGS + slot * GREETING_BYTES, struct.pack("<6I", *greeting))
    pen.signal(0, told_epoch << 32)


def label_at(buf: Any, batch: Batch, local: int, row: int) -> int:
    """Where the origin of a row is in each heap."""
    shape, window = batch.results[2].round.kind.shape, buf._session.window
    slot = batch.results[2].round.epoch % 2
    at = window.recv.offset + slot * window.recv.slot_bytes + shape.recv_offsets[1]
    at += (local * shape.max_rows + row) * shape.label_bytes
    return int(at + (shape.scale_words * 4 + 7) // 8 * 8)


def liars_row(batch: Batch, rank: int) -> tuple[int, int]:
    """A local expert of a rank, and a row there that came from the liar."""
    for local, rows in enumerate(batch.received[rank]):
        begin, count = divmod(int(rows.layout_range[LIAR]), 1 << 32)
        if count:
            return local, begin
    raise AssertionError("the case sends nothing there")


def ended(buf: Any, batch: Batch, call: Callable[[], None]) -> Told:
    start = time.monotonic()
    error, _, text = outcome(call)
    took_s = time.monotonic() - start
    return Told(error, text, took_s, outcome(batch.dispatch)[2])


def until_it_shows(buf: Any, offset: int, data: bytes) -> None:
    """What the liar wrote is in this rank's heap."""
    mine = buf._session.heap.maps[buf.rank][offset : offset + len(data)]
    deadline = time.monotonic() + PATIENCE_S
    while bytes(mine.tolist()) != data:
        assert time.monotonic() < deadline, "the lie has not come"
        time.sleep(0.01)


def count(buf: Any) -> Told | None:
    batch = Batch(buf, CASE, 1)
    if buf.rank != LIAR:
        return ended(buf, batch, batch.dispatch)
    for peer in (0, 2):
        announce(Pen(buf, peer), CASE.max_tokens + 1, 2, 2)
    return None


def epoch_of_counts(buf: Any) -> Told | None:
    batch = Batch(buf, CASE, 1)
    if buf.rank != LIAR:
        return ended(buf, batch, batch.dispatch)
    for peer in (0, 2):
        announce(Pen(buf, peer), 0, 2, 2 + FAR)
    return None


def epoch_of_rows(buf: Any) -> Told | None:
    batch = Batch(buf, HOOKED, 1)
    batch.dispatch()
    dist.barrier()
    if buf.rank != LIAR:
        at = buf._session.window.desks.offset + LIAR * DESK_BYTES + 8
        until_it_shows(buf, at, struct.pack("<Q", 2 + FAR << 32))
        return ended(buf, batch, batch.receive)
    for peer in (0, 2):
        Pen(buf, peer).signal(1, 2 + FAR << 32)
    return None


def label(buf: Any) -> Told | None:
    """The rows have come and were right; then their labels became others."""
    batch = Batch(buf, CASE, 1)
    batch.dispatch()
    batch.receive()
    dist.barrier()
    lie = struct.pack("<4H", LIAR, 2, 60000, 1)  # source, dispatch, token, choice
    if buf.rank != LIAR:
        until_it_shows(buf, label_at(buf, batch, *liars_row(batch, buf.rank)), lie)
        return ended(buf, batch, batch.combine)
    for peer in (0, 2):
        pen = Pen(buf, peer)
        pen.put(label_at(buf, batch, *liars_row(batch, peer)), lie)
        pen.signal(4, 1 << 32)  # what was put leaves with it
    return None


def grant(buf: Any) -> Told | None:
    """With `enable_shrink`: an owner that gives away rows which are none."""
    batch = Batch(buf, CASE, 1)
    if buf.rank != LIAR:
        return ended(buf, batch, batch.dispatch)
    num_local, grants = CASE.experts // CASE.world, buf._session.window.grants
    for peer in (0, 2):
        pen = Pen(buf, peer)
        announce(pen, 0, 2, 2)
        rows = struct.pack("<I", 1_000_000) * num_local
        pen.put(grants.offset + LIAR * num_local * 4, rows)  # slot 2 % 2
        pen.signal(5, 2 << 32)
    return None


LIES = {
    "grant": grant,
    "count": count,
    "epoch_of_counts": epoch_of_counts,
    "epoch_of_rows": epoch_of_rows,
} | {"label": label}


def lie(group: Any, topology: Topology, what: str, timeout_s: float) -> Told | None:
    """A round that is right, and one in which the liar lies."""
    options = {"enable_shrink": True} if what == "grant" else {}
    buf = make_linked_buffer(group, CASE, topology, timeout_s=timeout_s, **options)
    round_trip(buf, CASE, 0)
    dist.barrier()
    told = LIES[what](buf)
    dist.barrier()
    buf.destroy()
    return told
