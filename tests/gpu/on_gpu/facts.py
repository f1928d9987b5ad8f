"""What GPU and what software this is, and whether kernels can run here at all."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from typing import Any

import torch

from benchmarks.results import provenance
from deep_ll import kernels
from deep_ll.runtime.cuda import preflight
from on_gpu.section import ABSENT, RIGHT, Answer

OPTIONAL = ("nvshmem4py", "nvshmem", "nvidia-ml-py")
SMI = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.mem,mig.mode.current")


def missing(findings: list[preflight.Finding]) -> list[str]:
    """What keeps kernels from running, with cures; empty on a machine that can check them."""
    needed = [each for each in findings if each.name not in OPTIONAL]
    return [f"{each.name}: {each.found}\n  -> {each.cure}" for each in needed if not each.ok]


def collect(findings: list[preflight.Finding]) -> dict[str, Any]:
    """For the record."""
    built = kernels.description()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **provenance(None),
        "gpu": _gpu(),
        "nvidia_smi": _nvidia_smi(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernels": {
            "tiers": sorted(built.get("tiers", {})),
            "archs": built.get("archs"),
            "nvcc": built.get("nvcc"),
        },
        "preflight": [each._asdict() for each in findings],
    }


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": [found.major, found.minor],
        "multiprocessors": found.multi_processor_count,
        "memory_gb": round(found.total_memory / 1e9, 1),
        "l2_mb": round(getattr(found, "L2_cache_size", 0) / 1e6, 1),
    }


def _nvidia_smi() -> str | None:
    if shutil.which(SMI[0]) is None:
        return None
    result = subprocess.run([*SMI, "--format=csv,noheader"], capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def answer(dry: bool) -> Answer:
    """The section. In a dry run it records what is missing, and goes on."""
    findings = preflight.survey()
    details, reasons = collect(findings), missing(findings)
    if dry:
        reasons = [] if kernels.description() else ["kernels: none\n  -> build deep_ll with nvcc"]
    if reasons:
        return Answer(ABSENT, "kernels cannot run here", {**details, "missing": reasons})
    gpu = details["gpu"]
    name = "no GPU: dry run" if gpu is None else gpu["name"]
    built = details["kernels"]
    what = f"{name}; torch {details['torch']}; kernels by nvcc {built['nvcc']}"
    return Answer(RIGHT, what, details)
