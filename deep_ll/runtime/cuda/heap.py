"""A symmetric heap in GPU memory: this rank's, and where its kernels find every peer's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from deep_ll.runtime.paths import LINK, P2P, SELF, Path

if TYPE_CHECKING:
    from collections.abc import Callable

    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.cuda.network import Network
    from deep_ll.runtime.cuda.nvshmem_settings import Setting


@dataclass
class GpuHeap:
    """Device memory of all ranks, by rank.

    Attributes:
        rank: this rank.
        bases: addresses of all heaps, as this rank's kernels see them.
        num_bytes: size of one rank's heap.
        memory: uint8 [num_bytes], this rank's heap. Invalid after `close()`.
        num_local_ranks: ranks on this host.
        peer_bases_on_device: int64 [ranks], `bases` for kernels.
        links: how each rank is reached: "own", "NVLink", ...
        settings: what NVSHMEM was started with; empty without it.
        network: what kernels need for peers behind a network; None: all of all ranks are mapped.
            Then outputs wait behind the heap, in the same memory (Window.outputs).
        reasons: why each rank is behind the network, "" if it is not; empty without one.
    """

    rank: int
    bases: list[int]
    num_bytes: int
    memory: torch.Tensor = field(repr=False)
    num_local_ranks: int
    peer_bases_on_device: torch.Tensor = field(repr=False)
    links: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    network: Network | None = None
    reasons: tuple[str, ...] = ()
    _release: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.bases)

    @property
    def paths(self) -> list[Path]:
        """How each rank is reached."""
        found = []
        for peer in range(self.num_ranks):
            reason = self.reasons[peer] if self.reasons else ""
            kind = SELF if peer == self.rank else LINK if reason else P2P
            found.append(Path(peer, kind, reason or self.links[peer]))
        return found

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.memory.device

    def view(self, offset: int, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        """A tensor over this rank's heap."""
        count = 1
        for size in sizes:
            count *= size
        return self.memory[offset : offset + count * dtype.itemsize].view(dtype).view(*sizes)

    def close(self) -> None:
        """Gives the memory back. Collective; does nothing the second time. It never happens by
        itself, because a rank alone cannot free what its peers still write to."""
        release, self._release = self._release, None
        if release is not None:
            release()


def bases_on(device: Device, bases: list[int]) -> torch.Tensor:
    """Addresses as a tensor on the device."""
    table = device.empty(len(bases), torch.int64)
    table.copy_(torch.tensor(bases, dtype=torch.int64))
    return table
