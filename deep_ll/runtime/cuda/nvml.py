"""The seam to NVML (nvidia-ml-py, optional): which GPUs NVLink joins."""

from __future__ import annotations

import functools
import importlib

from deep_ll.runtime.cuda.untyped import Untyped

# nvmlGpuTopologyLevel_t: where the paths of two PCIe devices meet.
_MEETS = {
    0: "on one board",
    10: "behind one PCIe switch",
    20: "behind several PCIe switches",
    30: "at a host bridge",
    40: "inside one NUMA node",
    50: "across NUMA nodes",
}


class NvmlUnavailable(Exception):
    """NVML cannot be asked; the message says why."""


@functools.cache
def _library() -> Untyped:
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable("nvidia-ml-py is not installed") from error
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NvmlUnavailable(f"NVML does not start: {error}") from error
    return library


def gpus() -> list[tuple[str, str]]:
    """PCI bus id and name of each GPU of this machine, whether this process may use it or not.

    Raises:
        NvmlUnavailable: NVML is not there.
    """
    library = _library()
    try:
        handles = [
            library.nvmlDeviceGetHandleByIndex(index)
            for index in range(library.nvmlDeviceGetCount())
        ]
        return [
            (library.nvmlDeviceGetPciInfo(handle).busId, library.nvmlDeviceGetName(handle))
            for handle in handles
        ]
    except library.NVMLError as error:
        raise NvmlUnavailable(f"NVML does not list GPUs: {error}") from error


def nvlink_between(pci: str, other_pci: str) -> tuple[bool, str]:
    """Whether NVLink or NVSwitch joins two GPUs of this machine, and what does otherwise.

    Args:
        pci: PCI bus id of a GPU, which this process need not see.
        other_pci: of the other one.

    Raises:
        NvmlUnavailable: NVML is not there or does not know them.
    """
    library = _library()
    try:
        pair = [library.nvmlDeviceGetHandleByPciBusId(each.encode()) for each in (pci, other_pci)]
        status = library.nvmlDeviceGetP2PStatus(*pair, library.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == library.NVML_P2P_STATUS_OK:
            return True, "NVLink"
        level = int(library.nvmlDeviceGetTopologyCommonAncestor(*pair))
    except library.NVMLError as error:
        raise NvmlUnavailable(f"NVML cannot compare {pci} and {other_pci}: {error}") from error
    return False, f"PCIe, meeting {_MEETS.get(level, f'at level {level}')}"


def fabric(pci: str) -> str:
    """The NVLink fabric over several hosts that a GPU belongs to; "" for none or unknown."""
    try:
        library = _library()
        info = library.c_nvmlGpuFabricInfo_t()
        handle = library.nvmlDeviceGetHandleByPciBusId(pci.encode())
        library.nvmlDeviceGetGpuFabricInfo(handle, library.byref(info))
    except NvmlUnavailable:
        return ""
    except library.NVMLError:  # GPUs that have none
        return ""
    cluster = bytes(info.clusterUuid)
    if info.state != library.NVML_GPU_FABRIC_STATE_COMPLETED or not any(cluster):
        return ""
    return f"{cluster.hex()}.{info.cliqueId}"
