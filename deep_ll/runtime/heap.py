"""A symmetric heap: this rank's memory, and every peer's as this rank sees it."""

from __future__ import annotations

import mmap
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deep_ll import _native
from deep_ll.errors import HeapMemoryError, PeerError
from deep_ll.runtime import handover

if TYPE_CHECKING:
    from deep_ll.runtime.group import Group

# Only touched pages count, as in a memfd. (Python has the name since 3.11.)
_UNRESERVED = mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
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

    def close(self) -> None:
        """Nothing: the memory goes with the last tensor that looks into it."""

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


def open_heap(group: Group, num_bytes: int) -> Heap:
    """Makes this rank's heap and maps those of the others. Collective.

    Memory is not touched beyond the first page: what is never used costs nothing.

    Raises:
        PeerError: a rank's memory cannot be mapped here (it is on another host), or is not what it
            says it is.
    """
    nonce = secrets.token_bytes(_native.NONCE_BYTES)
    if group.in_process:
        own = _map(-1, num_bytes, nonce)
        return Heap(group.rank, group.all_gather(own), group.size)
    with handover.sealed_memory(num_bytes) as memory:
        own = _map(memory.fd, num_bytes, nonce)
        with handover.exchange(group, memory.fd) as fds:
            maps = [own if fd is None else _map(fd, num_bytes) for fd in fds]
    _check_nonces(maps, group.all_gather(nonce), group)
    return Heap(group.rank, maps, group.size)


def _map(fd: int, num_bytes: int, nonce: bytes | None = None) -> torch.Tensor:
    kind = mmap.MAP_SHARED | (_UNRESERVED if fd < 0 else 0)
    try:
        mapping = mmap.mmap(fd, num_bytes, kind, **_UNTRACKED)
    except OSError as error:
        raise HeapMemoryError(f"a heap of {num_bytes} bytes cannot be mapped: {error}") from error
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    if nonce is not None:
        memory[: len(nonce)] = torch.frombuffer(bytearray(nonce), dtype=torch.uint8)
    return memory


def _check_nonces(maps: list[torch.Tensor], nonces: list[bytes], group: Group) -> None:
    """That a mapping is the memory it should be is proven by its content, not assumed from a host
    name.
    """
    wrong = [
        peer
        for peer, nonce in enumerate(nonces)
        if bytes(maps[peer][: len(nonce)].tolist()) != nonce
    ]
    if wrong:
        raise PeerError(
            f"rank {group.rank} mapped memory that is not the heap of ranks {wrong}: start the "
            f"job again"
        )
