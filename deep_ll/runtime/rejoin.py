"""Takes a rank that began anew into a buffer whose other ranks live.

    newcomer                          each living rank
    asks: its card, its nonce
                                      states: its card, where it is in the order of calls, its link
    maps their heaps                  maps its heap
                            <- mapped or why not
    decides for each: mapped
    memory, or the link   decision ->
    begins where they are             forgets what the old one said
    connects                          connects
                            <- done ->
All of it goes through a store; memory as always, from process to process (handover.py). The
newcomer's side is in join.py.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deep_ll.errors import PeerError, PeerTimeout
from deep_ll.runtime import handover
from deep_ll.runtime.reach import Ask, Decision, Joined, Offer, ask_of, map_peer, offer, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from deep_ll.runtime.rejoin_memory import Own, Progress
    from deep_ll.runtime.store_group import StoreGroup


@dataclass(frozen=True)
class State:
    """What a living rank says."""

    ask: Ask
    progress: Progress
    masked: tuple[int, ...]  # all but the newcomer
    link: Offer | None


@dataclass(frozen=True)
class Place:
    """What the living have in common: how many they took in, and whom they leave out."""

    number: int
    living: tuple[int, ...]


@dataclass(frozen=True)
class Meeting:
    """Where one newcomer and the living meet: keys that no other meeting has."""

    group: StoreGroup
    prefix: str
    deadline: float  # on the monotonic clock
    what: str  # is waited for

    @property
    def left_s(self) -> float:
        """Until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def say(self, name: str, value: object) -> None:
        """For all of them."""
        self.group.put(f"{self.prefix}/{name}/{self.group.rank}", value)

    def hear(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What these say."""
        keys = {rank: f"{self.prefix}/{name}/{rank}" for rank in ranks}
        return self.group.get(keys, self.deadline, self.what)

    def finish(self, ranks: Iterable[int]) -> None:
        """All have come to the end."""
        self.say("done", True)
        self.hear("done", ranks)


def welcome(
    group: StoreGroup, own: Own, place: Place, progress: Progress, newcomer: int, timeout_s: float
) -> tuple[Joined, Place]:
    """The living ranks' side. Collective among them.

    Raises:
        PeerError: the living are not at the same place, the newcomer's heap is another size, or it
            cannot be reached.
        PeerTimeout: somebody did not come; it is named.
    """
    deadline, what = time.monotonic() + timeout_s, f"rejoin({newcomer})"
    with (
        _attempt(group, place, newcomer, deadline, what) as attempt,
        handover.serving(own.fd, group.size) as card,
    ):
        ask: Ask = group.get({newcomer: f"ask/{newcomer}/{attempt}"}, deadline, what)[newcomer]
        meeting = Meeting(group, f"round/{place.number}/{attempt}", deadline, what)
        masked = tuple(r for r in range(group.size) if r not in (*place.living, newcomer))
        mine = ask_of(own, card)
        meeting.say("state", State(mine, progress, masked, offer(own, newcomer)))
        if group.rank == place.living[0]:
            group.put(f"accept/{newcomer}/{attempt}", (place.number, place.living))
        check(meeting.hear("state", place.living), {newcomer: ask})
        joined = _take_in(meeting, own, newcomer, ask, progress)
        meeting.finish((*place.living, newcomer))
    if own.opened is not None:
        own.opened.terms.places[newcomer] = ask.place
    living = tuple(sorted((*place.living, newcomer)))
    return joined, Place(place.number + 1, living)


def _take_in(meeting: Meeting, own: Own, newcomer: int, ask: Ask, progress: Progress) -> Joined:
    rank = meeting.group.rank
    mapped = map_peer(own, rank, newcomer, ask)
    meeting.say("mapped", mapped.why_not)
    decision: Decision = meeting.hear("decision", [newcomer])[newcomer]
    if decision.problem:
        raise PeerError(decision.problem)
    own.begin_desk(newcomer, progress)
    reasons = {newcomer: decision.reasons[rank]}
    addresses = {newcomer: decision.address}
    return reach(own, {newcomer: mapped}, reasons, addresses, meeting.left_s)[newcomer]


@contextlib.contextmanager
def _attempt(
    group: StoreGroup, place: Place, newcomer: int, deadline: float, what: str
) -> Iterator[int]:
    """Which of the newcomer's attempts is meant: the first of the living decides. One that came to
    an end is not meant again; who was late may still come."""
    leader = place.living[0]
    key = f"round/{place.number}/attempt/{leader}"
    if group.rank != leader:
        yield int(group.get({leader: key}, deadline, what)[leader])
        return
    ended = group.count(f"ended/{newcomer}", 0)
    group.get({newcomer: f"ask/{newcomer}/{ended + 1}"}, deadline, what)
    attempt = group.count(f"asks/{newcomer}", 0)
    group.put(key, attempt)
    try:
        yield attempt
    except PeerTimeout:
        attempt = ended
        raise
    finally:
        group.drop(key)
        group.count(f"ended/{newcomer}", attempt - ended)


def check(states: Mapping[int, State], asks: Mapping[int, Ask]) -> None:
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
