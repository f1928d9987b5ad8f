"""The heap of a rank that begins anew where others live: the newcomer's side of rejoin.py."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from deep_ll import _native
from deep_ll.errors import PeerError
from deep_ll.runtime import handover
from deep_ll.runtime.heap import Heap, map_memory
from deep_ll.runtime.paths import P2P, SELF, Path
from deep_ll.runtime.reach import ask_of, decide, map_peer, reach
from deep_ll.runtime.rejoin import Meeting, Place, State, check
from deep_ll.runtime.rejoin_memory import Own, Progress
from deep_ll.runtime.sentinel import Sentinel

if TYPE_CHECKING:
    import torch

    from deep_ll.runtime.handover import Card
    from deep_ll.runtime.link import Opened
    from deep_ll.runtime.paths import Wish
    from deep_ll.runtime.reach import Ask, Joined
    from deep_ll.runtime.store_group import StoreGroup


class Entry(NamedTuple):
    """What a newcomer has when it is in."""

    joined: dict[int, Joined]
    progress: Progress
    place: Place
    opened: Opened | None
    num_local_ranks: int


def join_heap(group: StoreGroup, num_bytes: int, wish: Wish) -> tuple[Heap, Progress, Place]:
    """The newcomer's heap, with those of the living beside it.

    Raises:
        PeerError: the living are not at the same place, their heaps are another size, or one cannot
            be reached.
        PeerTimeout: nobody has called `buffer.rejoin(rank)`, or somebody did not come.
    """
    with handover.sealed_memory(num_bytes) as memory:
        mine = map_memory(memory.fd, num_bytes, secrets.token_bytes(_native.NONCE_BYTES))
        window = _native.Window.carve(num_bytes, group.size)
        own = Own(memory.fd, mine, window, group.size, wish)
        with handover.serving(memory.fd, group.size) as card:
            entry = _join(group, own, card)
        fd = os.dup(memory.fd)
    joined = entry.joined
    maps, paths = [], []
    for peer in range(group.size):
        path, memory_there = _way_to(peer, group.rank, mine, joined)
        maps.append(memory_there)
        paths.append(path)
    mapped = {peer: one for peer, one in joined.items() if one.path.kind == P2P}
    sentinels = {peer: Sentinel([(one.pid, one.memory)]) for peer, one in mapped.items()}
    heap = Heap(
        group.rank, maps, entry.num_local_ranks, paths, entry.opened, sentinels, fd=fd, wish=wish
    )
    return heap, entry.progress, entry.place


def _way_to(
    peer: int, rank: int, mine: torch.Tensor, joined: dict[int, Joined]
) -> tuple[Path, torch.Tensor]:
    if peer == rank:
        return Path(peer, SELF, "this rank's own memory"), mine
    if peer in joined:
        return joined[peer].path, joined[peer].memory
    # What is told to it is written nowhere.
    return Path(peer, P2P, "masked: it is reached when it rejoins"), map_memory(-1, mine.numel())


def _join(group: StoreGroup, own: Own, card: Card) -> Entry:
    deadline, rank = time.monotonic() + group.timeout_s, group.rank
    what = f"waiting for buffer.rejoin({rank}) of the living ranks"
    attempt = group.count(f"asks/{rank}", 1)
    ask = ask_of(own, card)
    group.put(f"ask/{rank}/{attempt}", ask)
    accept = f"accept/{rank}/{attempt}"
    others = {peer: accept for peer in range(group.size) if peer != rank}
    number, living = next(iter(group.get(others, deadline, what).values()))
    meeting = Meeting(group, f"round/{number}/{attempt}", deadline, what)
    states: dict[int, State] = meeting.hear("state", living)
    check(states, {rank: ask})
    progress = states[living[0]].progress
    progress = progress._replace(told_consumed=progress.consumed)
    for peer in range(group.size):
        own.begin_desk(peer, progress)
    joined, opened = _meet(meeting, own, states, ask)
    hosts = [state.ask.host for state in states.values()]
    place = Place(number + 1, tuple(sorted((*living, rank))))
    return Entry(joined, progress, place, opened, 1 + hosts.count(ask.host))


def _meet(
    meeting: Meeting, own: Own, states: dict[int, State], ask: Ask
) -> tuple[dict[int, Joined], Opened | None]:
    """The living, as they are reached from here, and the link if there is one."""
    rank = meeting.group.rank
    mapped = {peer: map_peer(own, rank, peer, state.ask) for peer, state in states.items()}
    theirs = meeting.hear("mapped", states)
    reasons = {peer: mapped[peer].why_not or theirs[peer] for peer in states}
    offers = {peer: state.link for peer, state in states.items() if state.link is not None}
    with contextlib.ExitStack() as undo:
        decision, opened = decide(meeting.group, own, reasons, offers, ask.place)
        if opened is not None:
            undo.callback(opened.link.close, 0)
        meeting.say("decision", decision)
        if decision.problem:
            raise PeerError(decision.problem)
        addresses = {peer: one.address for peer, one in offers.items()}
        own = replace(own, opened=opened)
        joined = reach(own, mapped, decision.reasons, addresses, meeting.left_s)
        meeting.finish((*states, rank))
        undo.pop_all()
    return joined, opened
