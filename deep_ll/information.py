"""What this installation is and what it found on this machine."""

from __future__ import annotations

import platform

import torch

from deep_ll import _native, env
from deep_ll.runtime import machine, memory

__version__ = "0.1.0"

_LEVELS = {"v2": "x86-64-v2", "v3": "x86-64-v3", "v4": "x86-64-v4"}


def info() -> dict[str, object]:
    """What is used here.

    Returns:
        version, torch, python; cpu_level: the kernels that will run ("x86-64-v3", ...), cpu_levels:
        all that could;
        cores: usable by this process; cache_bytes: the largest cache; available_bytes: memory that
            can still be touched;
        runtimes: kinds of ranks that can share a buffer.
    """
    chosen = machine.cpu_level(env.settings().cpu_level)
    return {
        "version": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu_level": _LEVELS.get(chosen, chosen),
        "cpu_levels": [_LEVELS.get(name, name) for name in _native.levels()],
        "cores": machine.num_cores(),
        "cache_bytes": machine.cache_bytes(),
        "available_bytes": memory.available_bytes(),
        "runtimes": ["host", "threads"],
    }
