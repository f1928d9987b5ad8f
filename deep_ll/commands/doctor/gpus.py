"""Checks of GPUs, of what joins them, and of NVSHMEM."""

from __future__ import annotations

import importlib.util
import os
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from deep_ll.commands.doctor.lines import ABSENT, BROKEN, OK, WARNING, Line, Machine
from deep_ll.runtime.cuda import nvml

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.preflight import Finding

_OPTIONAL = "nvidia-ml-py"
_TRANSPORT = "NVSHMEM_REMOTE_TRANSPORT"
_HINTS = {
    "SYSTEM_NOT_READY": "start nvidia-fabricmanager, which GPUs behind an NVSwitch wait for",
    "SYSTEM_DRIVER_MISMATCH": "reboot, or load the kernel module of the installed driver",
    "NO_DEVICE": "run the container with --gpus all; see CUDA_VISIBLE_DEVICES",
}


def needs(machine: Machine) -> list[Line]:
    """What GPUs need: driver, GPUs, kernels, packages. As deep_ll.info() tells it."""
    return [_needed(each, machine) for each in machine.survey]


def _needed(finding: Finding, machine: Machine) -> Line:
    name = f"gpu: {finding.name}"
    if finding.ok:
        return Line(name, OK, finding.found)
    if not machine.gpu_wanted:
        return Line(name, ABSENT, finding.found)
    hint = next((cure for word, cure in _HINTS.items() if word in finding.found), finding.cure)
    return Line(name, WARNING if finding.name == _OPTIONAL else BROKEN, finding.found, hint)


def driver_module(machine: Machine) -> list[Line]:
    """The kernel's side of the driver."""
    if not machine.gpu_wanted:
        return []
    version = machine.text("proc/driver/nvidia/version")
    if version is None:
        cure = "install the driver on the host, and run the container with --gpus all"
        found = f"not loaded ({len(machine.gpus())} NVIDIA GPUs on the PCI bus)"
        return [Line("driver module", BROKEN, found, cure)]
    return [Line("driver module", OK, version.splitlines()[0])]


def nvlinks(machine: Machine) -> list[Line]:
    """A line for each GPU: what joins it to the others."""
    if not machine.gpu_wanted:
        return [Line("nvlink", ABSENT, "no GPU")]
    try:
        gpus = [pci for pci, _ in nvml.gpus()]
    except nvml.NvmlUnavailable as error:
        cure = "pip install nvidia-ml-py, or see `nvidia-smi topo -m`"
        return [Line("nvlink", WARNING, f"cannot be told: {error}", cure)]
    if len(gpus) < 2:
        return [Line("nvlink", ABSENT, f"{len(gpus)} GPU, nothing to join")]
    ways: dict[int, dict[int, tuple[bool, str]]] = {index: {} for index in range(len(gpus))}
    for one, other in combinations(range(len(gpus)), 2):
        ways[one][other] = ways[other][one] = nvml.nvlink_between(gpus[one], gpus[other])
    return [_joined(index, ways[index]) for index in ways]


def _joined(index: int, ways: dict[int, tuple[bool, str]]) -> Line:
    found = ", ".join(f"{other}: {how}" for other, (_, how) in sorted(ways.items()))
    name = f"nvlink of gpu {index}"
    if all(safe for safe, _ in ways.values()):
        return Line(name, OK, found)
    cure = (
        "choose GPUs that `nvidia-smi topo -m` joins by NV# (CUDA_VISIBLE_DEVICES), or pass "
        "allow_pcie_p2p=True at your own risk: PCIe may redirect or reorder stores"
    )
    return Line(name, WARNING, found, cure)


def nvshmem(machine: Machine) -> list[Line]:
    """Its plugins; the version is among what GPUs need."""
    folder = _nvshmem_folder()
    if folder is None:
        cure = "pip install 'deep_ll[cuda13]'" if machine.gpu_wanted else ""
        return [Line("nvshmem plugins", machine.unless_needed(), "no library", cure)]
    names = [_plugin(path) for path in sorted(folder.glob("nvshmem_transport_*.so*"))]
    uid = any(folder.glob("nvshmem_bootstrap_uid.so*"))
    chosen = os.environ.get(_TRANSPORT)
    way = f"{_TRANSPORT}={chosen}" if chosen else "deep_ll chooses"
    found = f"transports {', '.join(names) or 'none'} ({way}), bootstrap uid"
    if not uid and machine.gpu_wanted:
        cure = "install nvidia-nvshmem-cu13 again: ranks meet by its uid bootstrap"
        return [Line("nvshmem plugins", BROKEN, f"{found} missing", cure)]
    if chosen not in (None, "none", *names):
        cure = f"none, or one of {', '.join(names)}; unset it, and deep_ll chooses"
        return [Line("nvshmem plugins", BROKEN, f"{found}: no such plugin", cure)]
    return [Line("nvshmem plugins", OK, found)]


def _plugin(path: Path) -> str:
    return path.name.removeprefix("nvshmem_transport_").split(".")[0]


def _nvshmem_folder() -> Path | None:
    """Where the wheel keeps NVSHMEM's libraries."""
    try:
        package = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return None
    for folder in (package.submodule_search_locations if package else None) or ():
        if (Path(folder) / "lib").is_dir():
            return Path(folder) / "lib"
    return None


CHECKS = (needs, driver_module, nvlinks, nvshmem)
