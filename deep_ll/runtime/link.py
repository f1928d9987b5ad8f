"""Opens the link to peers whose memory cannot be mapped: those on other hosts."""

from __future__ import annotations

import atexit
import importlib.util
import secrets
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deep_ll import _native, env
from deep_ll.errors import LinkUnavailable, PeerError
from deep_ll.runtime import network

if TYPE_CHECKING:
    from deep_ll.runtime.group import Group

_SECRET_BYTES = 32
_SHOWN = 4  # failures that a message lists
_LIBRARY = "libucp.so.0"
_INSTALL = "pip install 'deep_ll[net]'"

_open_links: weakref.WeakSet[_native.UcxLink] = weakref.WeakSet()


@dataclass(frozen=True)
class OwnHeap:
    """This rank's heap: where it is, how long."""

    address: int
    num_bytes: int


@dataclass(frozen=True)
class Terms:
    """What ranks that a link joins have in common.

    Attributes:
        secret: in each message.
        places: of all ranks.
    """

    secret: bytes
    places: list[network.Place]


class Opened(NamedTuple):
    """A link, and what its ranks have in common."""

    link: _native.UcxLink
    terms: Terms


@dataclass(frozen=True)
class _Card:
    """What ranks tell each other first. Only that of rank 0 has the secret that counts."""

    place: network.Place = field(default_factory=network.here)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(_SECRET_BYTES))


def open_link(
    group: Group, heap: OwnHeap, peers: Collection[int], timeout_s: float = 30.0
) -> Opened:
    """Opens a link and connects it to `peers`, each of which has to name this rank. Collective.

    What peers send is written into the heap from now on, until the link is closed; close it when
    all ranks have met after their last signal, and before the heap goes.

    Raises:
        LinkUnavailable: on every rank, if any rank cannot open its link; the message says why.
        PeerError: on every rank, if any was not heard in time; it names them.
    """
    cards: list[_Card] = group.all_gather(_Card())
    terms = Terms(cards[0].secret, [card.place for card in cards])
    link: _native.UcxLink | None = None
    problem, address, device = "", b"", ""
    try:
        device = _device(terms.places, group.rank)
        link = _open(group, heap, terms.secret, device)
        address = link.address()
    except LinkUnavailable as error:
        problem = f"rank {group.rank}: {error}"
    answers = group.all_gather((problem, address))
    problems = [text for text, _ in answers if text]
    if link is None or problems:
        _close(link)
        raise LinkUnavailable(f"no link to other hosts: {_shorten(problems)}")
    _open_links.add(link)
    problem = connect(link, {peer: answers[peer][1] for peer in peers}, timeout_s)
    silent = [f"rank {rank} {text}" for rank, text in enumerate(group.all_gather(problem)) if text]
    if silent:
        _close(link)
        raise PeerError(
            f"{_shorten(silent)}; this rank used the interface {device}: if others have to be "
            "used, name them in DEEP_LL_UCX_NET_DEVICES; else look for a firewall between the hosts"
        )
    return Opened(link, terms)


def join_link(group: Group, heap: OwnHeap, terms: Terms) -> Opened:
    """The link of a rank that joins others which have one. Nobody is connected yet.

    Raises:
        LinkUnavailable: it cannot be opened here.
    """
    link = _open(group, heap, terms.secret, _device(terms.places, group.rank))
    _open_links.add(link)
    return Opened(link, terms)


def connect(link: _native.UcxLink, addresses: dict[int, bytes], timeout_s: float) -> str:
    """Connects to peers that do the same. What went wrong; "" if all were heard."""
    for peer, address in addresses.items():
        try:
            link.connect(peer, address)
        except _native.LinkError as error:
            return f"cannot connect to rank {peer} ({error})"
    unheard = link.meet(list(addresses), round(timeout_s * 1e9))
    for peer in filter(link.dead, unheard):
        return f"cannot reach rank {peer} ({link.why_dead(peer)})"
    return f"has not heard ranks {unheard} within {timeout_s:g} s" if unheard else ""


@atexit.register
def _close_all() -> None:
    """UCX must not be taken down under a link that works."""
    for link in list(_open_links):
        _close(link)


def _open(group: Group, heap: OwnHeap, secret: bytes, device: str) -> _native.UcxLink:
    settings = env.settings()
    if not _native.HAVE_UCX:
        raise LinkUnavailable(
            f"this deep_ll was built without UCX's headers: {_INSTALL}, then build deep_ll again"
        )
    try:
        return _native.UcxLink(
            group.rank,
            group.size,
            heap.address,
            heap.num_bytes,
            secret,
            device,
            library_path(settings.libucp),
            round(settings.timeout_s * 1e9),
        )
    except _native.LinkError as error:
        raise LinkUnavailable(
            f"{error} (UCX comes with {_INSTALL}; DEEP_LL_LIBUCP names another library, "
            "DEEP_LL_UCX_NET_DEVICES another interface)"
        ) from error


def library_path(named: str) -> str:
    """What to load: the library that the environment names, else the one that this process has
    (as a cluster's MPI brings it), else the package's, else the system's.
    """
    if named or f"/{_LIBRARY}" in Path("/proc/self/maps").read_text():
        return named
    package = importlib.util.find_spec("libucx")
    folders = (package.submodule_search_locations if package else None) or ()
    found = [Path(folder, "lib", _LIBRARY) for folder in folders]
    return next((str(path) for path in found if path.is_file()), "")


def _device(places: Sequence[network.Place], rank: int) -> str:
    device = network.device_to(places[rank], places)
    if device is None:
        raise LinkUnavailable(
            "none of this host's interfaces leads to the other hosts (it has "
            f"{places[rank].addresses or 'none with an IPv4 address'}): name one in "
            "DEEP_LL_UCX_NET_DEVICES"
        )
    return device


def _close(link: _native.UcxLink | None) -> None:
    if link is not None:
        link.close(0)


def _shorten(lines: list[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
