"""What this machine has: cores, caches."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from deep_ll import _native
from deep_ll.errors import ArgumentError

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def host_name() -> str:
    """A name of this host that no other has, whatever namespaces a process is in."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_level(name: str) -> str:
    """The kernels to run: those named ("v3", ...), or for "" the best of this machine.

    Raises:
        ArgumentError: not built, or not for this machine; the message lists those it can run.
    """
    levels = _native.levels()
    if not name:
        return levels[0]
    if name not in levels:
        raise ArgumentError(
            f"DEEP_LL_CPU_LEVEL={name!r}: this build on this machine can run {', '.join(levels)}"
        )
    return name


@functools.cache
def cache_bytes() -> int:
    """Size of the largest cache that cores share; 32 MiB where the system does not tell."""
    sizes = [_parse(path.read_text().strip()) for path in _CACHES.glob("index*/size")]
    return max(sizes, default=32 << 20)


def _parse(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]] if size and size[-1] in _UNITS else int(size or 0)
