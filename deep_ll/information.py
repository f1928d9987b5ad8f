"""What this installation is and what it found on this machine."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from deep_ll import _native, env
from deep_ll.runtime import machine, memory
from deep_ll.runtime.cuda import images, preflight

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.preflight import Finding

__version__ = "0.1.0"

_LEVELS = {"v2": "x86-64-v2", "v3": "x86-64-v3", "v4": "x86-64-v4"}


def info() -> dict[str, object]:
    """What is used here. The driver of GPUs is asked by another process, unless torch has started
    CUDA in this one.

    Returns:
        version, torch, python; cpu_level: the kernels that will run ("x86-64-v3", ...), cpu_levels:
        all that could;
        cores: usable by this process; cache_bytes: the largest cache; available_bytes: memory that
            can still be touched;
        trace: the folder of DEEP_LL_TRACE, or None;
        runtimes: kinds of ranks that can share a buffer, each "available" or what is missing:
            "host" (processes) and "threads" on CPUs, "nvshmem" (processes) and "loopback" (threads
            that share a GPU) on GPUs;
        gpu: kernels: whether they are built; tiers: row sizes that have kernels of their own, "any"
            for all others; archs and nvcc: what they are built for and by; findings: all that GPUs
            need, found or not, with cures.
    """
    findings = preflight.survey()
    settings = env.settings()
    chosen = machine.cpu_level(settings.cpu_level)
    return {
        "version": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu_level": _LEVELS.get(chosen, chosen),
        "cpu_levels": [_LEVELS.get(name, name) for name in _native.levels()],
        "cores": machine.num_cores(),
        "cache_bytes": machine.cache_bytes(),
        "available_bytes": memory.available_bytes(),
        "trace": settings.trace,
        "runtimes": {
            "host": "available",
            "threads": "available",
            "nvshmem": _availability(findings, nvshmem=True),
            "loopback": _availability(findings, nvshmem=False),
        },
        "gpu": _gpu(findings),
    }


def _availability(findings: list[Finding], nvshmem: bool) -> str:
    missing = preflight.missing_of(findings, nvshmem)
    if not missing:
        return "available"
    return "missing: " + "; ".join(f"{each.name} ({each.found})" for each in missing)


def _gpu(findings: list[Finding]) -> dict[str, object]:
    built = images.description(images.FOLDER)
    return {
        "kernels": bool(built),
        "tiers": sorted(built.get("tiers", {})),
        "archs": list(built.get("archs", [])),
        "nvcc": built.get("nvcc"),
        "findings": [each._asdict() for each in findings],
    }
