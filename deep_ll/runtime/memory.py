"""How much memory is free here, containers' limits included."""

from __future__ import annotations

from pathlib import Path

from deep_ll.errors import HeapMemoryError

_ROOT = Path("/")
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" by a number near 2^63


def available_bytes() -> int:
    """Bytes that processes here can still touch: free memory, or what a cgroup leaves if that is
    less.
    """
    return min([free_bytes(), *cgroup_headroom()])


def check_fits(num_ranks: int, expected: int, available: int, worst: int) -> None:
    """Raises unless `num_ranks` ranks that touch `expected` bytes each fit.

    Raises:
        HeapMemoryError: with both numbers and what to change.
    """
    needed = num_ranks * expected
    if needed <= available:
        return
    raise HeapMemoryError(
        f"{num_ranks} ranks on this host are expected to touch {mib(needed)} of buffer memory "
        f"({mib(expected)} each, "
        f"{mib(worst)} at worst), but only {mib(available)} are free: use fewer tokens per rank "
        f"(max_tokens_per_rank), "
        "fewer ranks on this host, or raise the container's memory limit"
    )


def mib(num_bytes: int) -> str:
    """Bytes for people."""
    return f"{num_bytes / (1 << 20):.1f} MiB"


def free_bytes(root: Path = _ROOT) -> int:
    """What this machine has left; `root` is what /proc is in."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def cgroup_headroom(root: Path = _ROOT) -> list[int]:
    """What each cgroup above this process leaves; `root` is what /proc and /sys are in."""
    headroom = []
    mounted = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        top = mounted / "memory" if controllers else mounted
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if controllers
            else ("memory.max", "memory.current")
        )
        folder = top / path.lstrip("/")
        headroom += [
            _headroom(place, *names)
            for place in (folder, *folder.parents)
            if place == top or top in place.parents
        ]
    return [left for left in headroom if left is not None]


def _headroom(folder: Path, limit_name: str, usage_name: str) -> int | None:
    try:
        limit, usage = (
            (folder / limit_name).read_text().strip(),
            (folder / usage_name).read_text().strip(),
        )
    except OSError:
        return None
    if limit == "max" or int(limit) >= _UNLIMITED:
        return None
    return max(0, int(limit) - int(usage) + _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    """What of a cgroup's usage is file cache that makes room by itself."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split(maxsplit=1) for line in lines)
    return int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
