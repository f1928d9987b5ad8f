"""What a rank has done and whom it has waited for, in numbers: `Buffer.stats()`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deep_ll._native import Tally, Watch
    from deep_ll.runtime.paths import Path

_US = 1000  # ns


@dataclass(frozen=True)
class Waits:
    """How long this rank waited for one rank, in microseconds.

    Attributes:
        peer: the rank.
        count: waits; one for which nothing was missing is one of 0.
        total_us, max_us: exact to a quarter of a microsecond.
        p50_us, p99_us: within 6%.
    """

    peer: int
    count: int
    total_us: float
    p50_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class Stats:
    """What `Buffer.stats()` returns; `print()` shows a table.

    Attributes:
        rank: this rank.
        calls: dispatches and combines that were sent, by "dispatch" and "combine".
        bytes: of rows that this rank moved, by path: "self", "p2p", "link". A dispatch's with their
            labels; a combine's that it sent, or read in place with `zero_copy`.
        phases: by what was waited for ("counts", "rows", "credit", "outputs", ...): a Waits a rank.
        waits: all of these together, by rank.
    """

    rank: int
    calls: dict[str, int]
    bytes: dict[str, int]
    phases: dict[str, list[Waits]]
    waits: list[Waits]

    @property
    def slowest(self) -> int | None:
        """The rank that was waited for longest in all; None: nobody was."""
        worst = max(self.waits, key=lambda waits: waits.total_us, default=None)
        return None if worst is None or worst.total_us == 0 else worst.peer

    def __str__(self) -> str:
        slowest = "none" if self.slowest is None else f"rank {self.slowest}"
        moved = ", ".join(f"{count:,} {path}" for path, count in self.bytes.items())
        calls = ", ".join(f"{count:,} {name}" for name, count in self.calls.items())
        lines = [
            f"rank {self.rank}: calls: {calls}; bytes: {moved}; slowest peer: {slowest}",
            f"{'waited for':>12} {'count':>9} {'total ms':>11} {'p50 us':>9} {'p99 us':>9} "
            f"{'max us':>11}",
        ]
        for w in self.waits:
            name = f"rank {w.peer}"
            lines.append(
                f"{name:>12} {w.count:9,} {w.total_us / 1000:11,.3f} {w.p50_us:9,.1f} "
                f"{w.p99_us:9,.1f} {w.max_us:11,.1f}"
            )
        return "\n".join(lines)


def stats_of(watch: Watch, rank: int, calls: dict[str, int], paths: Sequence[Path]) -> Stats:
    """All that a rank's watch has counted."""
    told = watch.waits()
    moved = dict.fromkeys(("self", "p2p", "link"), 0)
    for path, count in zip(paths, watch.bytes(), strict=True):
        moved[path.kind] += count
    peers = range(len(paths))
    phases = {
        kind: [_waits(peer, count, [tallies[peer]]) for peer in peers]
        for kind, (count, tallies) in told.items()
    }
    count = sum(count for count, _ in told.values())
    together = [
        _waits(peer, count, [tallies[peer] for _, tallies in told.values()]) for peer in peers
    ]
    return Stats(rank, calls, moved, phases, together)


def _waits(peer: int, count: int, tallies: list[Tally]) -> Waits:
    """`count`: of all waits; those that are in no tally were over before they began."""
    classes: Counter[int] = Counter()
    for _, _, _, own in tallies:
        classes.update(own)
    classes[0] += count - sum(each for each, *_ in tallies)
    most = max((longest for _, _, longest, _ in tallies), default=0)
    total = sum(total for _, total, _, _ in tallies)
    p50, p99 = (min(_quantile(classes, share), most) / _US for share in (0.5, 0.99))
    return Waits(peer, count, total / _US, p50, p99, most / _US)


def _quantile(classes: Counter[int], share: float) -> int:
    left = share * sum(classes.values())
    for ns in sorted(classes):
        left -= classes[ns]
        if left <= 0:
            return ns
    return 0
