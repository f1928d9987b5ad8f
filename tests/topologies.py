"""Which peers a rank reaches over the link, as data, and how a rank is made to."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cases import Case
from exchange import make_buffer

import deep_ll


@dataclass(frozen=True)
class Topology:
    """What the caller and the environment say."""

    allow: bool | None = None
    disable: str | None = None
    ranks_per_node: int | None = None

    def __str__(self) -> str:
        if self == ALL_P2P:
            return "all_p2p"
        if self.ranks_per_node is not None:
            return f"nodes_of_{self.ranks_per_node}"
        return f"allow={self.allow},disable={self.disable}"

    def variables(self) -> dict[str, str]:
        named = {
            "NVSHMEM_DISABLE_P2P": self.disable,
            "DEEP_LL_RANKS_PER_NODE": self.ranks_per_node,
        }
        return {name: str(value) for name, value in named.items() if value is not None}

    def is_linked(self, rank: int, peer: int) -> bool:
        if rank == peer:
            return False
        if self.allow is False or (self.allow is None and self.disable == "1"):
            return True
        size = self.ranks_per_node
        return bool(size) and rank // size != peer // size

    def kinds(self, rank: int, world: int) -> list[str]:
        """What `paths()` has to say on this rank."""
        kinds = ["link" if self.is_linked(rank, peer) else "p2p" for peer in range(world)]
        kinds[rank] = "self"
        return kinds


ALL_P2P = Topology()
ALL_LINK = Topology(disable="1")
NO_TRAFFIC = Topology(allow=False)


def nodes_of(num_ranks: int) -> Topology:
    return Topology(ranks_per_node=num_ranks)


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """These variables and no others that choose paths; afterwards as before. Not for ranks that are
    threads: they share them."""
    assert threading.current_thread() is threading.main_thread()
    before = dict(os.environ)
    for name in ("NVSHMEM_DISABLE_P2P", "DEEP_LL_RANKS_PER_NODE", "DEEP_LL_LIBUCP"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_linked_buffer(
    group: Any, case: Case, topology: Topology, **options: Any
) -> deep_ll.Buffer:
    with environment(topology.variables()):
        return make_buffer(group, case, allow_nvlink_traffic=topology.allow, **options)
