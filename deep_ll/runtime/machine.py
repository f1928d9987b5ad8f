"""What this machine has: cores, caches."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def cache_bytes() -> int:
    """Size of the largest cache that cores share; 32 MiB where the system does not tell."""
    sizes = [_parse(path.read_text().strip()) for path in _CACHES.glob("index*/size")]
    return max(sizes, default=32 << 20)


def _parse(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]] if size and size[-1] in _UNITS else int(size or 0)
