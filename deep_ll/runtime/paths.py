"""How each peer is reached: its memory is mapped here (p2p), or puts go over the network (link)."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deep_ll.runtime.group import Group

SELF, P2P, LINK = "self", "p2p", "link"


class Path(NamedTuple):
    """The way to one peer.

    Attributes:
        peer: its rank.
        kind: "self", "p2p" or "link".
        reason: why that way.
    """

    peer: int
    kind: str
    reason: str


def count_linked(paths: Iterable[Path]) -> int:
    """Peers behind a link."""
    return sum(path.kind == LINK for path in paths)


@dataclass(frozen=True)
class Wish:
    """What the caller and the environment allow.

    Attributes:
        refused: why no memory may be mapped; "" if it may.
        ranks_per_node: ranks beyond a multiple of this count as being on another host; 0: by what
            can be mapped.
        explicit: whether the caller asked for p2p in so many words.
    """

    refused: str = ""
    ranks_per_node: int = 0
    explicit: bool = False

    def against(self, rank: int, peer: int) -> str:
        """Why `rank` must not map the memory of `peer`; "" if it may."""
        if self.refused:
            return self.refused
        size = self.ranks_per_node
        if size and rank // size != peer // size:
            return f"another node of {size} ranks (DEEP_LL_RANKS_PER_NODE)"
        return ""


def foresee_linked(hosts: Sequence[str], wishes: Sequence[Wish]) -> list[int]:
    """For each rank the number of peers that will be behind a link, as far as hosts and wishes
    tell.
    """
    nodes = [
        (host, rank // size if size else -1)
        for rank, (host, size) in enumerate(
            zip(hosts, (w.ranks_per_node for w in wishes), strict=True)
        )
    ]
    mapping = Counter(node for node, w in zip(nodes, wishes, strict=True) if not w.refused)
    return [
        len(hosts) - (1 if w.refused else mapping[node])
        for node, w in zip(nodes, wishes, strict=True)
    ]


def wish(
    allow_p2p: bool | None,
    disable_p2p: bool | None,
    ranks_per_node: int,
    argument: str = "allow_nvlink_traffic",
) -> Wish:
    """What holds when an argument of the caller and the environment's NVSHMEM_DISABLE_P2P (None:
    not set) say this. The argument wins; a contradiction is worth one warning.
    """
    if allow_p2p is not None and disable_p2p is not None and allow_p2p == disable_p2p:
        warnings.warn(
            f"{argument}={allow_p2p} contradicts NVSHMEM_DISABLE_P2P={int(disable_p2p)} "
            "in the environment: the argument is followed",
            stacklevel=3,
        )
    if allow_p2p is False:
        return Wish(f"{argument}=False", ranks_per_node)
    if allow_p2p is None and disable_p2p:
        return Wish("NVSHMEM_DISABLE_P2P=1", ranks_per_node)
    return Wish("", ranks_per_node, explicit=allow_p2p is True)


def agree(group: Group, why_not: list[str]) -> tuple[list[Path], bool]:
    """The paths of this rank, when each rank knows why it cannot map each peer ("" if it can), and
    whether any rank has a peer behind a link. Both ends of a path take the same way. Collective.
    """
    table = group.all_gather(why_not)
    own = group.rank
    paths = []
    for peer in range(group.size):
        reason = why_not[peer] or table[peer][own]
        if peer == own:
            paths.append(Path(peer, SELF, "this rank's own memory"))
        elif reason:
            paths.append(Path(peer, LINK, reason))
        else:
            paths.append(Path(peer, P2P, "its memory is mapped here"))
    return paths, any(map(any, table))
