"""A symmetric heap: this rank's memory, and every peer's as this rank sees it."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deep_ll import _native
from deep_ll.errors import HeapMemoryError, LinkUnavailable, PeerError
from deep_ll.runtime import handover, machine
from deep_ll.runtime.link import Opened, OwnHeap, open_link
from deep_ll.runtime.paths import LINK, P2P, Path, Wish, agree
from deep_ll.runtime.sentinel import Sentinel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deep_ll.runtime.group import Group

# Only touched pages count, as in a memfd. (Python has the name since 3.11.)
_UNRESERVED = mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_GOODBYE_NS = 2_000_000_000  # for what is still on its way when a link is closed
_SHOWN = 4  # peers that a message lists
_ANY = Wish()
_FIRST = -1
# Before 3.13 Python keeps a descriptor open for each mapping.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class AnyHeap(Protocol):
    """What is asked of a heap on any machine."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""

    @property
    def num_local_ranks(self) -> int:
        """Ranks on this host."""

    @property
    def num_bytes(self) -> int:
        """Size of one rank's heap."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    @property
    def paths(self) -> list[Path]:
        """How each rank is reached."""

    def view(self, offset: int, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        """A tensor over this rank's heap."""

    def close(self) -> None:
        """Gives the memory back; collective on GPUs."""


@dataclass(frozen=True)
class Heap:
    """Mapped memory of all ranks, by rank. It is given back when the last tensor that looks into
    it is gone.
    """

    rank: int
    maps: list[torch.Tensor] = field(repr=False)  # uint8 [num_bytes] each
    num_local_ranks: int
    paths: list[Path]  # by rank. Behind a link a map is this rank's own: what it ships lies there
    opened: Opened | None = field(default=None, repr=False)  # if any rank has a peer behind a link
    # Over the ranks of this host (_FIRST), and one over each that began anew.
    sentinels: dict[int, Sentinel] = field(default_factory=dict, repr=False)
    fd: int | None = None  # of this rank's memory, for ranks that rejoin
    wish: Wish = _ANY
    _end: weakref.finalize[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Also of a buffer that is just dropped, and at the end of a program that never destroys it.
        parts = (self.maps[self.rank], self.link, self.sentinels, self.fd)
        object.__setattr__(self, "_end", weakref.finalize(self, _end, *parts))

    @property
    def has_links(self) -> bool:
        """Whether any rank of the group has a peer behind a link."""
        return self.opened is not None

    @property
    def link(self) -> _native.UcxLink | None:
        """To the peers behind it."""
        return None if self.opened is None else self.opened.link

    @property
    def bases(self) -> list[int]:
        """Addresses of all heaps."""
        return [memory.data_ptr() for memory in self.maps]

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.maps)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.maps[self.rank].device

    def gone(self) -> set[int]:
        """Peers from which nothing comes any more: their processes ended, they closed their heaps,
        or they cannot be reached.
        """
        return {path.peer for path in self.paths if self._is_gone(path)}

    def _is_gone(self, path: Path) -> bool:
        if path.kind == LINK:
            return self.link is not None and self.link.dead(path.peer)
        return path.kind == P2P and _native.is_gone(self.maps[path.peer].data_ptr())

    def replace(self, path: Path, memory: torch.Tensor, pid: int) -> None:
        """The heap of a rank that began anew."""
        self.maps[path.peer], self.paths[path.peer] = memory, path
        if path.peer in self.sentinels:
            self.sentinels.pop(path.peer).stop()
        if path.kind == P2P:
            self.sentinels[path.peer] = Sentinel([(pid, memory)])

    def close(self) -> None:
        """Tells the peers that nothing comes from here any more, and ends the link, if there is
        one. The memory goes with the last tensor that looks into it.
        """
        self._end()

    @property
    def num_bytes(self) -> int:
        """Size of one rank's heap."""
        return self.maps[self.rank].numel()

    def view(self, offset: int, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        """A tensor over this rank's heap."""
        count = 1
        for size in sizes:
            count *= size
        return (
            self.maps[self.rank][offset : offset + count * dtype.itemsize].view(dtype).view(*sizes)
        )


def _end(
    own: torch.Tensor, link: _native.UcxLink | None, sentinels: dict[int, Sentinel], fd: int | None
) -> None:
    # Peers write into the heap until the link is closed, so that comes before the memory goes.
    if link is not None:
        link.close(_GOODBYE_NS)
    _native.mark_gone(own.data_ptr())
    for sentinel in sentinels.values():
        sentinel.stop()
    if fd is not None:
        os.close(fd)


def open_heap(group: Group, num_bytes: int, wish: Wish = _ANY) -> Heap:
    """Makes this rank's heap, maps those of the others where it can, and opens a link to the rest.
    Collective.

    Memory is not touched beyond the first page: what is never used costs nothing.

    Raises:
        LinkUnavailable: a peer's memory may not or cannot be mapped, and there is no link either.
        PeerError: a rank's memory is not what it says it is.
    """
    nonce = secrets.token_bytes(_native.NONCE_BYTES)
    if group.in_process:
        return _thread_heap(group, num_bytes, nonce, wish)
    with handover.sealed_memory(num_bytes) as memory:
        own = map_memory(memory.fd, num_bytes, nonce)
        with handover.exchange(group, memory.fd, wish) as taken:
            maps = [own if fd is None else map_memory(fd, num_bytes) for fd in taken.fds]
        with contextlib.ExitStack() as undo:
            kept = os.dup(memory.fd)
            undo.callback(os.close, kept)
            heap = _agreed_heap(group, maps, nonce, taken, (kept, wish))
            undo.pop_all()
    return heap


def _agreed_heap(
    group: Group,
    maps: list[torch.Tensor],
    nonce: bytes,
    taken: handover.Taken,
    own_way: tuple[int, Wish],
) -> Heap:
    own, num_bytes = maps[group.rank], maps[group.rank].numel()
    paths, has_links = agree(group, taken.why_not)
    behind = [path.peer for path in paths if path.kind == LINK]
    for peer in behind:
        maps[peer] = map_memory(-1, num_bytes)
    nonces, hosts = zip(*group.all_gather((nonce, machine.host_name())), strict=True)
    _check_nonces({path.peer for path in paths} - set(behind), maps, nonces, group)
    opened = _link_to(group, own, paths) if has_links else None
    mapped = [path.peer for path in paths if path.kind == P2P]
    owners = [(taken.pids[peer], maps[peer]) for peer in mapped]
    sentinels = {_FIRST: Sentinel(owners)} if mapped else {}
    num_local = hosts.count(hosts[group.rank])
    return Heap(group.rank, maps, num_local, paths, opened, sentinels, *own_way)


def _thread_heap(group: Group, num_bytes: int, nonce: bytes, wish: Wish) -> Heap:
    peers = (peer for peer in range(group.size) if peer != group.rank)
    own_refusal = next(filter(None, (wish.against(group.rank, peer) for peer in peers)), "")
    refused = next(filter(None, group.all_gather(own_refusal)), "")
    if refused:
        raise LinkUnavailable(
            f"ranks that are threads of one process have no other path than its memory: {refused}"
        )
    own = map_memory(-1, num_bytes, nonce)
    paths, _ = agree(group, [""] * group.size)
    return Heap(group.rank, group.all_gather(own), group.size, paths)


def _link_to(group: Group, own: torch.Tensor, paths: list[Path]) -> Opened:
    behind = [path for path in paths if path.kind == LINK]
    try:
        heap = OwnHeap(own.data_ptr(), own.numel())
        return open_link(group, heap, [path.peer for path in behind])
    except LinkUnavailable as error:
        reasons = "; ".join(f"rank {path.peer}: {path.reason}" for path in behind[:_SHOWN])
        more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
        raise LinkUnavailable(
            f"rank {group.rank} has no path to ranks {[path.peer for path in behind]} "
            f"({reasons}{more}), because there is no link: {error}"
        ) from error


def map_memory(fd: int, num_bytes: int, nonce: bytes | None = None) -> torch.Tensor:
    """Memory by its descriptor (-1: of this process alone), shared; `nonce` is put at its start."""
    kind = mmap.MAP_SHARED | (_UNRESERVED if fd < 0 else 0)
    try:
        mapping = mmap.mmap(fd, num_bytes, kind, **_UNTRACKED)
    except OSError as error:
        raise HeapMemoryError(f"a heap of {num_bytes} bytes cannot be mapped: {error}") from error
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    if nonce is not None:
        memory[: len(nonce)] = torch.frombuffer(bytearray(nonce), dtype=torch.uint8)
    return memory


def _check_nonces(
    mapped: set[int], maps: list[torch.Tensor], nonces: Sequence[bytes], group: Group
) -> None:
    """That a mapping is the memory it should be is proven by its content, not assumed from a host
    name. Raises on all ranks or on none.
    """
    wrong = [
        peer
        for peer, nonce in enumerate(nonces)
        if peer in mapped and bytes(maps[peer][: len(nonce)].tolist()) != nonce
    ]
    for rank, others in enumerate(group.all_gather(wrong)):
        if others:
            raise PeerError(
                f"rank {rank} mapped memory that is not the heap of ranks {others}: start the job "
                "again"
            )
