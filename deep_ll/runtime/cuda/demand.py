"""What the caller and the environment want of a network between GPUs, and whether there is one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from deep_ll.runtime.cuda import ibgda, network
from deep_ll.runtime.cuda.nvshmem_settings import Wanted
from deep_ll.runtime.paths import Wish

_CARDS = Path("/", ibgda.CARDS)


class Demand(NamedTuple):
    """Of a network.

    Attributes:
        wish: which peers may be mapped.
        forced: DEEP_LL_FORCE_LINK: all peers count as behind one, though NVSHMEM reaches them by
            stores. For checks of these kernels on one host.
    """

    wish: Wish = Wish()
    forced: bool = False

    def against(self, rank: int, peer: int) -> str:
        """Why `rank` must not map the memory of `peer`; "" if it may."""
        return "DEEP_LL_FORCE_LINK=1" if self.forced else self.wish.against(rank, peer)

    def problem(self) -> str:
        """Why no peer can be reached over a network from here; "" if one can be."""
        if not network.built():
            return (
                "this installation has no kernels for one: build deep_ll where an nvcc and NVSHMEM "
                "are (docs/gpu.md)"
            )
        if self.forced or (_CARDS.is_dir() and any(_CARDS.iterdir())):
            return ""
        return f"there is no RDMA card here ({_CARDS} is empty): run `python -m deep_ll doctor`"

    def settings(self) -> Wanted:
        """What NVSHMEM has to be started with."""
        return Wanted(True, ibgda.may_drive(), bool(self.wish.refused), self.forced)


NOTHING = Demand()
