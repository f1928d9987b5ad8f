"""What GPUs need and what of it is here, found out before anything that could end the process.

NVSHMEM does not raise where it cannot start: it may call exit(). So what it needs is checked first.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Any, NamedTuple

import torch

from deep_ll.errors import GpuUnavailable
from deep_ll.runtime.cuda import images, probe
from deep_ll.runtime.cuda.untyped import Untyped

_OLDEST_DRIVER = 13000  # loads machine code made by CUDA 13
OLDEST_NVSHMEM = (3, 4, 5)
_OLDEST_GPU = (8, 0)
_PACKAGES = "pip install 'deep_ll[cuda13]'"
_BUILD = (
    "pip install 'deep_ll[cuda13-build]' and build deep_ll on this machine with "
    "DEEP_LL_CUDA=require in the environment, which says what is missing"
)
_NVSHMEM = ("nvshmem4py", "nvshmem")
_OPTIONAL = ("nvidia-ml-py",)


class Finding(NamedTuple):
    """One thing that GPUs need.

    Attributes:
        name: what.
        ok: whether it is there and new enough.
        found: what there is.
        cure: the command or the step that helps; empty if ok.
    """

    name: str
    ok: bool
    found: str
    cure: str = ""


def survey(in_process: bool = False, device_index: int | None = None) -> list[Finding]:
    """All that GPUs need, found or not.

    Args:
        in_process: ask the driver from this process, which starts CUDA in it. Without, another
            process asks, unless torch has started CUDA here.
        device_index: the GPU that must be able to run the kernels; None: all of them.
    """
    torch_cuda: Untyped = torch.cuda
    here = in_process or torch_cuda.is_initialized()
    report = probe.look() if here else probe.look_elsewhere()
    devices = report["devices"]
    if device_index is not None:
        devices = devices[device_index : device_index + 1]
    return [
        _driver(report),
        _gpu(report, devices, device_index),
        *_kernels(devices),
        _torch(),
        _package("cuda-python", "cuda.bindings.driver", "cuda-bindings"),
        _package("nvshmem4py", "nvshmem", "nvshmem4py-cu13", "nvshmem4py-cu12"),
        _nvshmem(),
        _package("nvidia-ml-py", "pynvml", "nvidia-ml-py"),
    ]


def require(device_index: int, nvshmem: bool = True) -> None:
    """Checks that kernels can run on a GPU of this process.

    Args:
        device_index: as torch counts.
        nvshmem: whether peers are to be reached by NVSHMEM.

    Raises:
        GpuUnavailable: with all that is missing and the cure of each.
    """
    missing = missing_of(survey(in_process=True, device_index=device_index), nvshmem)
    if missing:
        lines = [f"  {each.name}: {each.found}\n    -> {each.cure}" for each in missing]
        raise GpuUnavailable(
            "GPUs cannot be used here (device='cpu' needs none):\n" + "\n".join(lines)
        )


def missing_of(findings: list[Finding], nvshmem: bool) -> list[Finding]:
    """Those without which no buffer can be on a GPU.

    Args:
        findings: of `survey`.
        nvshmem: whether peers are to be reached by NVSHMEM.
    """
    ignored = _OPTIONAL if nvshmem else _OPTIONAL + _NVSHMEM
    return [each for each in findings if not each.ok and each.name not in ignored]


def _driver(report: dict[str, Any]) -> Finding:
    version, error = report["driver"], report["error"]
    if version is None:
        cure = "install the NVIDIA driver, R580 or newer; in a container, run it with --gpus"
        return Finding("driver", False, f"none ({error})", cure)
    found = f"CUDA {version // 1000}.{version % 1000 // 10}"
    if version < _OLDEST_DRIVER:
        return Finding("driver", False, found, "update the NVIDIA driver to R580 (CUDA 13.0)")
    return Finding("driver", True, found)


def _gpu(
    report: dict[str, Any], devices: list[dict[str, Any]], device_index: int | None
) -> Finding:
    if devices:
        return Finding("gpu", True, ", ".join(map(_describe, devices)))
    count = len(report["devices"])
    found = f"none ({report['error'] or 'the driver lists none'})"
    if device_index is not None and count:
        found = f"no GPU {device_index}, there are {count}"
    return Finding("gpu", False, found, "see nvidia-smi, and CUDA_VISIBLE_DEVICES")


def _describe(device: dict[str, Any]) -> str:
    return "{} ({}.{})".format(device["name"], *device["capability"])


def _kernels(devices: list[dict[str, Any]]) -> list[Finding]:
    files = images.fatbins(images.FOLDER)
    absent = [str(path) for path in files.values() if not path.is_file()]
    if not files or absent:
        where = ", ".join(absent) or str(images.FOLDER / "ep.json")
        return [Finding("kernels", False, f"none: no {where}", _BUILD)]
    # All tiers are built for the same GPUs.
    built = images.images(next(iter(files.values())).read_bytes())
    names = ", ".join(map(str, built)) or "for unknown GPUs"
    findings = [Finding("kernels", True, names)]
    for device in devices:
        capability = device["capability"][0], device["capability"][1]
        if capability < _OLDEST_GPU:
            cure = "use a GPU of compute capability 8.0 or more"
            findings.append(Finding("kernels for the gpu", False, _describe(device), cure))
        elif built and not any(image.runs_on(capability) for image in built):
            found = f"{_describe(device)}, code for {names}"
            findings.append(Finding("kernels for the gpu", False, found, _BUILD))
    return findings


def _torch() -> Finding:
    found = str(torch.__version__)
    if torch.version.cuda is not None:
        return Finding("torch", True, f"{found}, CUDA {torch.version.cuda}")
    cure = "pip install torch --index-url https://download.pytorch.org/whl/cu130"
    return Finding("torch", False, f"{found}, without CUDA", cure)


def _package(name: str, module: str, *distributions: str) -> Finding:
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        there = False
    version = _version(*distributions)
    return Finding(name, there, version or "there") if there else _absent(name)


def _absent(name: str) -> Finding:
    return Finding(name, False, "not installed", _PACKAGES)


def _nvshmem() -> Finding:
    version = _version("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12")
    if version is None:
        return _absent("nvshmem")
    ok = numbers(version) >= OLDEST_NVSHMEM
    return Finding("nvshmem", ok, version, "" if ok else "pip install 'nvidia-nvshmem-cu13>=3.4.5'")


def numbers(version: str) -> tuple[int, ...]:
    """ "3.4.5" as numbers that compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _version(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
