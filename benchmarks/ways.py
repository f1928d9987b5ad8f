"""How deep_ll's ranks reached each other in one configuration, and what they sent that way."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import LINKED
from benchmarks.harness import Measurement
from benchmarks.hooks import Hidden


@dataclass(frozen=True)
class Way:
    """The paths of one configuration of deep_ll."""

    path: str  # "p2p", "link", or both: "p2p+link"
    disable_p2p: bool  # NVSHMEM_DISABLE_P2P
    paths: list[tuple[int, str, str]]  # of rank 0: peer, kind, reason
    num_pairs: dict[str, int]  # of ranks, by kind of path
    p2p_bytes: dict[str, int]  # by operation, of the average rank
    link_bytes: dict[str, int]
    transport: str
    hooks: dict[str, Hidden]  # by operation

    def as_json(self, op: str) -> dict[str, Any]:
        """For the row of one operation."""
        hidden = self.hooks.get(op)
        return {
            "path": self.path,
            "nvshmem_disable_p2p": int(self.disable_p2p),
            "paths": [dict(zip(("peer", "kind", "reason"), p, strict=True)) for p in self.paths],
            "pairs": self.num_pairs,
            "p2p_bytes": self.p2p_bytes[op],
            "link_bytes": self.link_bytes[op],
            "transport": self.transport,
            "hook": None if hidden is None else _hook_json(hidden),
        }


def way_of(name: str, measurement: Measurement) -> Way:
    """Of one of contestants.PRODUCTS."""
    ranks = measurement.descriptions[name]
    pairs = Counter(kind for rank in ranks for _, kind, _ in rank.paths)
    kinds = [kind for kind in ("p2p", "link") if kind in pairs]
    hooks = measurement.hooks.get(name, [])
    return Way(
        path="+".join(kinds) or "p2p",
        disable_p2p=name == LINKED,
        paths=ranks[0].paths,
        num_pairs=dict(pairs),
        p2p_bytes=_average([rank.p2p_bytes for rank in ranks]),
        link_bytes=_average([rank.link_bytes for rank in ranks]),
        transport=ranks[0].transport,
        hooks={op: Hidden.of([runs[op] for runs in hooks]) for op in (hooks[0] if hooks else ())},
    )


def _average(ranks: list[dict[str, int]]) -> dict[str, int]:
    return {op: round(statistics.mean(rank[op] for rank in ranks)) for op in ranks[0]}


def _hook_json(hidden: Hidden) -> dict[str, float]:
    return {
        "send_ms": round(hidden.send_ms, 4),
        "receive_ms": round(hidden.receive_ms, 4),
        "matmul_ms": round(hidden.matmul_ms, 4),
        "series_ms": round(hidden.series_ms, 4),
        "together_ms": round(hidden.together_ms, 4),
        "hidden": round(hidden.share, 3),
    }
