"""Takes a rank that began anew into a buffer whose other ranks live.

    newcomer                          each living rank
    asks: its card, its nonce
                                      states: its card, where it is in the order of calls
    maps their heaps, begins where
    they are                 ready ->
                                      maps its heap, forgets what the old one said
                              <- done ->
All of it goes through a store; memory as always, from process to process (handover.py).
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native
from deep_ll.errors import PeerError
from deep_ll.runtime import handover, machine
from deep_ll.runtime.heap import Heap, map_memory
from deep_ll.runtime.paths import P2P, SELF, Path
from deep_ll.runtime.sentinel import Sentinel

if TYPE_CHECKING:
    from deep_ll.runtime.handover import Card
    from deep_ll.runtime.store_group import StoreGroup

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
    """What a rank brings: its memory."""

    fd: int
    memory: torch.Tensor
    window: _native.Window
    num_ranks: int

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


class Joined(NamedTuple):
    """A heap that was taken.

    Attributes:
        memory: as it is mapped here.
        pid: of its process, as seen from here.
    """

    memory: torch.Tensor
    pid: int


@dataclass(frozen=True)
class Ask:
    """What a newcomer says."""

    card: Card
    nonce: bytes
    num_bytes: int
    host: str


@dataclass(frozen=True)
class State:
    """What a living rank says."""

    ask: Ask
    progress: Progress
    masked: tuple[int, ...]  # all but the newcomer
    served: dict[int, int]  # of each rank, how often it had asked when it was last taken in


@dataclass(frozen=True)
class Place:
    """What the living have in common: how many they took in, and whom they leave out."""

    number: int
    living: tuple[int, ...]
    served: dict[int, int]


def welcome(
    group: StoreGroup, own: Own, place: Place, state: Progress, newcomer: int, timeout_s: float
) -> tuple[Joined, Place]:
    """The living ranks' side. Collective among them.

    Raises:
        PeerError: the living are not at the same place, or the newcomer's heap is another size.
        PeerTimeout: somebody did not come; it is named.
    """
    deadline, what = time.monotonic() + timeout_s, f"rejoin({newcomer})"
    attempt = _attempt(group, place, newcomer, deadline, what)
    prefix = f"round/{place.number}"
    ask = group.get({newcomer: f"ask/{newcomer}/{attempt}"}, deadline, what)[newcomer]
    masked = tuple(r for r in range(group.size) if r not in (*place.living, newcomer))
    with handover.serving(own.fd, group.size) as card:
        mine = _ask_of(own, card)
        group.put(f"{prefix}/state/{group.rank}", State(mine, state, masked, place.served))
        if group.rank == place.living[0]:
            group.put(f"accept/{newcomer}/{attempt}", (place.number, place.living))
        keys = {rank: f"{prefix}/state/{rank}" for rank in place.living}
        _check(group.get(keys, deadline, what), {newcomer: ask})
        joined = _take(newcomer, ask)
        group.get({newcomer: f"{prefix}/ready"}, deadline, what)
        own.begin_desk(newcomer, state)
        _finish(group, prefix, (*place.living, newcomer), deadline, what)
    served = place.served | {newcomer: attempt}
    living = tuple(sorted((*place.living, newcomer)))
    return joined, Place(place.number + 1, living, served)


def join(
    group: StoreGroup, own: Own, timeout_s: float
) -> tuple[dict[int, Joined], Progress, Place]:
    """The newcomer's side: the heaps of the living, and where they are.

    Raises:
        PeerError: as in `welcome`.
        PeerTimeout: nobody has called `buffer.rejoin(rank)`, or somebody did not come.
    """
    deadline, rank = time.monotonic() + timeout_s, group.rank
    what = f"waiting for buffer.rejoin({rank}) of the living ranks"
    with handover.serving(own.fd, group.size) as card:
        attempt = group.count(f"asks/{rank}", 1)
        ask = _ask_of(own, card)
        group.put(f"ask/{rank}/{attempt}", ask)
        accept = f"accept/{rank}/{attempt}"
        others = {peer: accept for peer in range(group.size) if peer != rank}
        number, living = next(iter(group.get(others, deadline, what).values()))
        prefix = f"round/{number}"
        keys = {peer: f"{prefix}/state/{peer}" for peer in living}
        states = group.get(keys, deadline, what)
        _check(states, {rank: ask})
        joined = {peer: _take(peer, states[peer].ask) for peer in living}
        leader = states[living[0]]
        progress = leader.progress._replace(told_consumed=leader.progress.consumed)
        for peer in range(own.num_ranks):
            own.begin_desk(peer, progress)
        group.put(f"{prefix}/ready", True)
        _finish(group, prefix, (*living, rank), deadline, what)
    everybody = tuple(sorted((*living, rank)))
    return joined, progress, Place(number + 1, everybody, leader.served | {rank: attempt})


def join_heap(group: StoreGroup, num_bytes: int) -> tuple[Heap, Progress, Place]:
    """The newcomer's heap, with those of the living mapped beside it.

    Raises:
        PeerError, PeerTimeout: as in `join`.
    """
    with handover.sealed_memory(num_bytes) as memory:
        mine = map_memory(memory.fd, num_bytes, secrets.token_bytes(_native.NONCE_BYTES))
        own = Own(memory.fd, mine, _native.Window.carve(num_bytes, group.size), group.size)
        joined, progress, place = join(group, own, group.timeout_s)
        fd = os.dup(memory.fd)
    maps, paths = [], []
    for peer in range(group.size):
        if peer == group.rank:
            maps.append(mine)
            paths.append(Path(peer, SELF, "this rank's own memory"))
        elif peer in joined:
            maps.append(joined[peer].memory)
            paths.append(Path(peer, P2P, "its memory is mapped here"))
        else:  # what is told to it is written nowhere
            maps.append(map_memory(-1, num_bytes))
            paths.append(Path(peer, P2P, "masked: it is mapped when it rejoins"))
    sentinels = {peer: Sentinel([(one.pid, one.memory)]) for peer, one in joined.items()}
    heap = Heap(group.rank, maps, len(place.living), paths, sentinels=sentinels, fd=fd)
    return heap, progress, place


def _attempt(group: StoreGroup, place: Place, newcomer: int, deadline: float, what: str) -> int:
    """Which of the newcomer's attempts is meant: the first of the living decides."""
    key, leader = f"round/{place.number}/attempt", place.living[0]
    if group.rank != leader:
        return int(group.get({leader: key}, deadline, what)[leader])
    served = place.served.get(newcomer, 0)
    group.get({newcomer: f"ask/{newcomer}/{served + 1}"}, deadline, what)
    attempt = group.count(f"asks/{newcomer}", 0)
    group.put(key, attempt)
    return attempt


def _ask_of(own: Own, card: Card) -> Ask:
    return Ask(card, own.nonce, own.memory.numel(), machine.host_name())


def _check(states: dict[int, State], asks: dict[int, Ask]) -> None:
    """All come to the same verdict: they see the same."""
    first, state = min(states.items())
    for rank, other in states.items():
        if (other.progress.to_agree(), other.masked) != (state.progress.to_agree(), state.masked):
            raise PeerError(
                f"ranks {first} and {rank} are not at the same place: they have made calls up to "
                f"{tuple(state.progress)} and {tuple(other.progress)}, and mask {state.masked} and "
                f"{other.masked}: call rejoin at the same place on all ranks"
            )
    for rank, ask in asks.items():
        if ask.num_bytes != state.ask.num_bytes:
            raise PeerError(
                f"the heap of rank {rank} has {ask.num_bytes} bytes, those of the others "
                f"{state.ask.num_bytes}: make its buffer with the same sizes"
            )


def _take(peer: int, ask: Ask) -> Joined:
    try:
        fd, pid = handover.take(ask.card)
    except OSError as error:
        raise PeerError(
            f"the memory of rank {peer} cannot be mapped ({error}): a rank can only rejoin on the "
            "host of the others; else make a new buffer"
        ) from error
    try:
        memory = map_memory(fd, ask.num_bytes)
    finally:
        os.close(fd)
    if bytes(memory[: len(ask.nonce)].tolist()) != ask.nonce:
        raise PeerError(f"what was mapped is not the heap of rank {peer}: let it rejoin again")
    return Joined(memory, pid)


def _finish(
    group: StoreGroup, prefix: str, ranks: tuple[int, ...], deadline: float, what: str
) -> None:
    group.put(f"{prefix}/done/{group.rank}", True)
    group.get({rank: f"{prefix}/done/{rank}" for rank in ranks}, deadline, what)


def _write(memory: torch.Tensor, offset: int, data: bytes) -> None:
    memory[offset : offset + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
