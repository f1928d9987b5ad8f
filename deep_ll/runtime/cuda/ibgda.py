"""Whether a GPU may drive network cards itself (IBGDA of NVSHMEM); else the CPU does, slower."""

from __future__ import annotations

import ctypes.util
import re
from pathlib import Path
from typing import NamedTuple

CARDS = "sys/class/infiniband"
_MELLANOX = "0x15b3"
_REGKEYS = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"'


class Finding(NamedTuple):
    """One thing that it needs.

    Attributes:
        name: what.
        ok: whether it is there.
        found: what there is.
        cure: the command or the step that helps; empty if ok.
        only_slower: without it the CPU helps the GPU.
    """

    name: str
    ok: bool
    found: str
    cure: str = ""
    only_slower: bool = False


def may_drive(root: Path = Path("/")) -> bool:
    """Whether all of it is there.

    Args:
        root: what /proc and /sys are in.
    """
    return all(each.ok for each in findings(root))


def findings(root: Path = Path("/")) -> list[Finding]:
    """All that it needs, found or not."""
    return [_maker(root), _registration(root), _keys(root), _mlx5()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _maker(root: Path) -> Finding:
    place = root / CARDS
    found = sorted(place.iterdir()) if place.is_dir() else []
    mlx5 = [card.name for card in found if _text(card / "device" / "vendor") == _MELLANOX]
    if mlx5:
        return Finding("card", True, ", ".join(mlx5))
    names = ", ".join(card.name for card in found)
    cure = "IBGDA is for NVIDIA's mlx5 cards only; others need a proxy (NVSHMEM_REMOTE_TRANSPORT)"
    return Finding("card", False, f"none of mlx5 ({names})", cure)


def _registration(root: Path) -> Finding:
    """How cards get at GPU memory."""
    for module in ("nvidia_peermem", "nv_peer_mem"):
        if (root / "sys/module" / module).is_dir():
            return Finding("gpu memory", True, module)
    if "Open Kernel Module" in _text(root / "proc/driver/nvidia/version"):
        return Finding("gpu memory", True, "dmabuf, by the open kernel module")
    cure = "modprobe nvidia_peermem, or install the driver's open kernel modules (dmabuf)"
    return Finding("gpu memory", False, "neither peermem nor dmabuf", cure)


def _keys(root: Path) -> Finding:
    params = _text(root / "proc/driver/nvidia/params")
    missing = []
    if not re.search(r"^EnableStreamMemOPs: 1$", params, re.MULTILINE):
        missing.append("EnableStreamMemOPs=1")
    if not re.search(r"PeerMappingOverride=1", params):
        missing.append("PeerMappingOverride=1")
    if not missing:
        return Finding("driver keys", True, "EnableStreamMemOPs=1, PeerMappingOverride=1")
    found = f"missing {', '.join(missing)}: from NVSHMEM 3.4.5 on the CPU helps, slower"
    cure = f"in /etc/modprobe.d: {_REGKEYS}; then update-initramfs -u and reboot"
    return Finding("driver keys", False, found, cure, only_slower=True)


def _mlx5() -> Finding:
    library = ctypes.util.find_library("mlx5")
    if library:
        return Finding("library", True, library)
    cure = "apt install ibverbs-providers (libmlx5.so.1), which NVSHMEM's plugin needs"
    return Finding("library", False, "no libmlx5", cure)
