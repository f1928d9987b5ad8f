"""Which peers may be reached by loads and stores: those that NVLink or NVSwitch joins.

Over PCIe the driver maps a peer's memory as well, but bridges there may redirect or reorder what
kernels store (ACS, IOMMU), and every signal of this library stands on the order of stores.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deep_ll.errors import DriverError, PeerError
from deep_ll.runtime.cuda import calls, nvml

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.device import Device

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Place(NamedTuple):
    """Where a rank's GPU is.

    Attributes:
        host: its name, for people.
        machine: the same for all containers of a machine, and for no other machine.
        pci: bus id of the GPU.
        gpu: its name.
        fabric: the NVLink fabric of several hosts that it belongs to, or "".
    """

    host: str
    machine: str
    pci: str
    gpu: str
    fabric: str = ""

    def __str__(self) -> str:
        return f"{self.gpu} {self.pci} on {self.host}"


def place_of(device: Device) -> Place:
    """Where this rank's GPU is.

    Raises:
        DriverError: the driver does not say.
    """
    doing = f"asking where GPU {device.index} is"
    handle = calls.call("cuDeviceGet", device.index, doing=doing)
    pci = calls.call("cuDeviceGetPCIBusId", 32, handle, doing=doing)
    pci = pci.split(b"\0")[0].decode()
    try:
        machine = _BOOT.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    return Place(socket.gethostname(), machine, pci, device.name, nvml.fabric(pci))


class Reach(NamedTuple):
    """How this rank reaches another.

    Attributes:
        link: "own", "same GPU", "NVLink", "NVLink fabric", or a sort of PCIe.
        safe: whether by loads and stores.
    """

    link: str
    safe: bool


def reach(rank: int, places: list[Place], allow_pcie_p2p: bool) -> list[Reach]:
    """How this rank reaches each one.

    Args:
        rank: this rank.
        places: of all ranks.
        allow_pcie_p2p: also take peers that only PCIe joins, or whose link cannot be told.
    """
    own, found = places[rank], []
    for peer, place in enumerate(places):
        if peer == rank:
            found.append(Reach("own", True))
            continue
        safe, link = _link(own, place)
        found.append(Reach(link, safe or (allow_pcie_p2p and place.machine == own.machine)))
    return found


def refusal(rank: int, places: list[Place], ways: list[Reach], no_network: str) -> PeerError:
    """Some cannot be reached by loads and stores, and not over a network either: names both GPUs,
    the link and the cure."""
    refused = [
        f"rank {peer} ({places[peer]}): {way.link}" for peer, way in enumerate(ways) if not way.safe
    ]
    return PeerError(_refusal(rank, places, refused, no_network))


def _refusal(rank: int, places: list[Place], refused: list[str], no_network: str) -> str:
    more = f"; and {len(refused) - 4} more" if len(refused) > 4 else ""
    text = f"rank {rank} ({places[rank]}) cannot reach {'; '.join(refused[:4])}{more}. "
    if any(place.machine != places[rank].machine for place in places):
        text += (
            "Peers on other hosts need one NVLink fabric with all ranks (and nvidia-ml-py "
            f"installed, to tell), or a network: {no_network}. "
        )
    return text + (
        "On one host this version trusts NVLink and NVSwitch only, because PCIe may redirect or "
        "reorder stores: choose GPUs that `nvidia-smi topo -m` joins by NV#, or pass "
        "allow_pcie_p2p=True at your own risk"
    )


def _link(own: Place, peer: Place) -> tuple[bool, str]:
    """Whether stores to a peer are safe, and what they go over."""
    if peer.machine != own.machine:
        joined = bool(own.fabric) and own.fabric == peer.fabric
        return joined, "NVLink fabric" if joined else "on another host, no NVLink fabric in common"
    if peer.pci == own.pci:
        return True, "same GPU"
    try:
        return nvml.nvlink_between(own.pci, peer.pci)
    except nvml.NvmlUnavailable as error:
        return _link_by_driver(own.pci, peer.pci, str(error))


def _link_by_driver(pci: str, other_pci: str, reason: str) -> tuple[bool, str]:
    """The same from the driver, which knows no links: but only NVLink carries native atomics."""
    doing = f"comparing GPUs {pci} and {other_pci}"
    attribute = calls.bindings().CUdevice_P2PAttribute
    atomics = attribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    try:
        pair = [
            calls.call("cuDeviceGetByPCIBusId", each.encode(), doing=doing)
            for each in (pci, other_pci)
        ]
        if not calls.call("cuDeviceCanAccessPeer", *pair, doing=doing):
            return False, f"no peer access ({reason})"
        native = calls.call("cuDeviceGetP2PAttribute", atomics, *pair, doing=doing)
    except DriverError:  # a GPU that this process does not see
        return False, f"a link that cannot be told ({reason}): pip install nvidia-ml-py"
    if native:
        return True, "NVLink"
    return False, f"PCIe by what the driver says ({reason})"
