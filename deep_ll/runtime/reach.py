"""How a rank that began anew and the living reach each other: mapped memory, else the link.

Each of the two says whether it could map the other's memory; the newcomer, which hears all,
decides. What its past had sent over the link does not count: messages are numbered anew, from a
number that both learn here.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from deep_ll.errors import LinkUnavailable, PeerError
from deep_ll.runtime import handover, machine, network
from deep_ll.runtime.heap import map_memory
from deep_ll.runtime.link import OwnHeap, connect, join_link
from deep_ll.runtime.paths import LINK, P2P, Path

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from deep_ll.runtime.handover import Card
    from deep_ll.runtime.link import Opened, Terms
    from deep_ll.runtime.rejoin_memory import Own
    from deep_ll.runtime.store_group import StoreGroup

_NUMBER_BITS = 64  # of messages over the link


@dataclass(frozen=True)
class Ask:
    """What a rank says of itself."""

    card: Card
    nonce: bytes
    num_bytes: int
    host: str = field(default_factory=machine.host_name)
    place: network.Place = field(default_factory=network.here)


@dataclass(frozen=True)
class Offer:
    """A living rank's link, for the newcomer."""

    terms: Terms
    address: bytes
    first_number: int  # of messages between the two


@dataclass(frozen=True)
class Decision:
    """Of the newcomer.

    Attributes:
        reasons: for each living rank why it is reached by the link; "": by its memory.
        address: of the newcomer's link; b"": it has none.
        problem: why it cannot join; "" if it can.
    """

    reasons: dict[int, str]
    address: bytes
    problem: str


class Mapped(NamedTuple):
    """A peer's memory, or why there is none."""

    memory: torch.Tensor | None
    pid: int
    why_not: str


class Joined(NamedTuple):
    """A peer as it is reached now: its memory, or memory of this rank's own behind the link."""

    path: Path
    memory: torch.Tensor
    pid: int


def ask_of(own: Own, card: Card) -> Ask:
    """What a rank says of itself."""
    return Ask(card, own.nonce, own.memory.numel())


def map_peer(own: Own, rank: int, peer: int, ask: Ask) -> Mapped:
    """Maps a peer's memory if that is possible and both may.

    Raises:
        PeerError: what was mapped is not its heap.
    """
    why_not = own.wish.against(rank, peer)
    if why_not:
        return Mapped(None, 0, why_not)
    try:
        fd, pid = handover.take(ask.card)
    except OSError as error:
        return Mapped(None, 0, f"its memory cannot be mapped ({error})")
    try:
        memory = map_memory(fd, ask.num_bytes)
    finally:
        os.close(fd)
    if bytes(memory[: len(ask.nonce)].tolist()) != ask.nonce:
        raise PeerError(f"what was mapped is not the heap of rank {peer}: let it rejoin again")
    return Mapped(memory, pid, "")


def offer(own: Own, newcomer: int) -> Offer | None:
    """This rank's link, which from now on takes messages of the newcomer's new life alone."""
    if own.opened is None:
        return None
    link, terms = own.opened
    number = secrets.randbits(_NUMBER_BITS)
    link.expect_anew(newcomer, number)
    return Offer(terms, link.address(), number)


def decide(
    group: StoreGroup,
    own: Own,
    reasons: dict[int, str],
    offers: Mapping[int, Offer],
    place: network.Place,
) -> tuple[Decision, Opened | None]:
    """The newcomer's decision, and its link if the others have one."""
    linked = [peer for peer, reason in reasons.items() if reason]
    if not offers:
        return Decision(
            reasons, b"", _no_link(group.rank, linked[0], reasons) if linked else ""
        ), None
    terms = next(iter(offers.values())).terms
    terms.places[group.rank] = place
    try:
        opened = join_link(group, OwnHeap(own.memory.data_ptr(), own.memory.numel()), terms)
    except LinkUnavailable as error:
        return Decision(reasons, b"", f"rank {group.rank} has no link: {error}"), None
    for peer, one in offers.items():
        opened.link.expect_anew(peer, one.first_number)
    return Decision(reasons, opened.link.address(), ""), opened


def _no_link(rank: int, peer: int, reasons: Mapping[int, str]) -> str:
    return (
        f"ranks {rank} and {peer} cannot reach each other ({reasons[peer]}): this group has no "
        "link, so a rank can only rejoin on the host of the others; else make a new buffer"
    )


def reach(
    own: Own,
    mapped: Mapping[int, Mapped],
    reasons: Mapping[int, str],
    addresses: Mapping[int, bytes],
    timeout_s: float,
) -> dict[int, Joined]:
    """The peers, each by the way that was decided.

    Raises:
        PeerError: one cannot be reached over the link.
    """
    linked = {peer: addresses[peer] for peer, reason in reasons.items() if reason}
    if linked and own.opened is not None:
        problem = connect(own.opened.link, linked, timeout_s)
        if problem:
            raise PeerError(f"this rank {problem}: is there a firewall between the hosts?")
    return {peer: _joined(own, peer, mapped[peer], reason) for peer, reason in reasons.items()}


def _joined(own: Own, peer: int, mapped: Mapped, reason: str) -> Joined:
    if reason or mapped.memory is None:
        return Joined(Path(peer, LINK, reason), map_memory(-1, own.memory.numel()), 0)
    return Joined(Path(peer, P2P, "its memory is mapped here"), mapped.memory, mapped.pid)
