"""What a rank that rejoins, or lets another, has in memory: its place in the order of calls, its
desks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native

if TYPE_CHECKING:
    from deep_ll.runtime.link import Opened
    from deep_ll.runtime.paths import Wish

_DESK_BYTES, _NOTE_BYTES = 128, 16  # csrc/ep/window.hpp: Desk; csrc/team/signal.hpp: Note
_EPOCHS = 1 << 32


class Progress(NamedTuple):
    """Where a rank is in the order of calls: csrc/ep/args.hpp."""

    dispatched: int
    combined: int
    consumed: int
    told_consumed: int
    received_0: int
    received_1: int
    returned_0: int
    returned_1: int
    met: int

    def to_agree(self) -> tuple[int, ...]:
        """What must be the same on all ranks; whether it told `consumed` is each one's own."""
        return self._replace(told_consumed=0)

    def words(self) -> bytes:
        """What the signals of a rank say that has made all calls so far (Desk)."""
        last = (self.combined, (self.combined - 1) % _EPOCHS)
        even, odd = last if self.combined % 2 == 0 else last[::-1]
        epochs = (self.dispatched, self.dispatched, even, odd, self.consumed, self.dispatched)
        return struct.pack("<7Q", *(epoch << 32 for epoch in (*epochs, self.met)))


@dataclass(frozen=True)
class Own:
    """What a rank brings: its memory, which memory it may map, its link if it has one."""

    fd: int
    memory: torch.Tensor
    window: _native.Window
    num_ranks: int
    wish: Wish
    opened: Opened | None = None

    @property
    def nonce(self) -> bytes:
        """By which its memory is known."""
        return bytes(self.memory[: _native.NONCE_BYTES].tolist())

    def begin_desk(self, source: int, progress: Progress) -> None:
        """What `source` says here becomes what one says that has made all calls so far, and has
        nothing against this rank."""
        _write(self.memory, self.window.desks.offset + source * _DESK_BYTES, progress.words())
        note = self.window.notes.offset + source * _NOTE_BYTES
        _write(self.memory, note, bytes(_NOTE_BYTES))


def _write(memory: torch.Tensor, offset: int, data: bytes) -> None:
    memory[offset : offset + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
