"""Checks of network cards that do RDMA, and of what GPUs need to drive them (IBGDA)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deep_ll.commands.doctor.lines import ABSENT, BROKEN, OK, WARNING, Line, Machine
from deep_ll.runtime.cuda.ibgda import CARDS, Finding, findings

_GID_NONE = re.compile(r"^[0:]+$")
_GID_LOCAL = re.compile(r"^fe80:0000:0000:0000:")


def _needed() -> bool:
    """Whether the environment sends peers' data over cards."""
    return os.environ.get("NVSHMEM_DISABLE_P2P") == "1" or bool(
        os.environ.get("NVSHMEM_IB_ENABLE_IBGDA", "0").lower() in ("1", "y", "yes", "true", "on")
    )


def cards(machine: Machine) -> list[Line]:
    """A line for each port, and whether this process may open the cards."""
    found = machine.folders(CARDS)
    if not found:
        if machine.gpu_wanted and _needed():
            cure = "unset NVSHMEM_DISABLE_P2P, or give the host (and the container) RDMA cards"
            return [Line("rdma cards", BROKEN, "none in /sys/class/infiniband", cure)]
        return [Line("rdma cards", ABSENT, "none; only GPUs of several hosts need them")]
    lines = [line for card in found for line in _ports(machine, card)]
    if not any(line.state == OK for line in lines) and machine.gpu_wanted and _needed():
        cure = "bring a port up, or unset NVSHMEM_DISABLE_P2P"
        lines.append(Line("rdma cards", BROKEN, "no port that works", cure))
    if not machine.folders("dev/infiniband"):
        cure = "run the container with --device=/dev/infiniband, or load ib_uverbs"
        lines.append(Line("rdma devices", WARNING, "no /dev/infiniband", cure))
    return lines


def _ports(machine: Machine, card: Path) -> list[Line]:
    return [_port(machine, card, port) for port in machine.folders(f"{CARDS}/{card.name}/ports")]


def _port(machine: Machine, card: Path, port: Path) -> Line:
    name = f"port {card.name}:{port.name}"
    state = machine.text(f"{port}/state") or "unknown"
    physical = machine.text(f"{port}/phys_state") or "unknown"
    layer = machine.text(f"{port}/link_layer") or "unknown"
    found = f"{layer}, {state.split(': ')[-1]}, {machine.text(f'{port}/rate') or 'no rate'}"
    if "ACTIVE" not in state:
        cure = "plug the cable and configure the switch's port"
        if "LinkUp" in physical:
            cure = "the cable is fine: start a subnet manager (opensm), or configure the interface"
        return Line(name, WARNING, f"{found}, {physical.split(': ')[-1]}", cure)
    return Line(name, OK, found) if layer == "InfiniBand" else _roce(machine, port, name, found)


def _roce(machine: Machine, port: Path, name: str, found: str) -> Line:
    """RoCE needs a GID of version 2 that routes; which one is told by its index."""
    gids = {
        int(each.name): machine.text(str(each)) or "" for each in machine.folders(f"{port}/gids")
    }
    usable = {
        index: gid
        for index, gid in sorted(gids.items())
        if gid
        and not _GID_NONE.match(gid)
        and "v2" in (machine.text(f"{port}/gid_attrs/types/{index}") or "")
    }
    routed = [index for index, gid in usable.items() if not _GID_LOCAL.match(gid)]
    chosen = os.environ.get("NVSHMEM_IB_GID_INDEX", "")
    if chosen and int(chosen) >= 0 and int(chosen) not in usable:
        cure = (
            f"set NVSHMEM_IB_GID_INDEX to one of RoCE v2: {', '.join(map(str, usable)) or 'none'}"
        )
        return Line(name, BROKEN, f"{found}, NVSHMEM_IB_GID_INDEX={chosen} is none", cure)
    if not routed:
        cure = "give the interface an IP address; without one `Unable to create ah` follows"
        return Line(name, WARNING, f"{found}, no RoCE v2 GID with an address", cure)
    return Line(name, OK, f"{found}, RoCE v2 GID {', '.join(map(str, routed))}")


def affinity(machine: Machine) -> list[Line]:
    """The nearest card of each GPU; two GPUs at one card share its bandwidth."""
    places = {card.name: (card / "device").resolve() for card in machine.folders(CARDS)}
    gpus = {gpu.name: gpu.resolve() for gpu in machine.gpus()}
    if not places or not gpus:
        return []
    nearest: dict[str, list[str]] = {}
    for gpu, place in gpus.items():
        common = {card: _common(place, other) for card, other in places.items()}
        nearest[gpu] = [card for card in places if common[card] == max(common.values())]
    lines = [_nearest(machine, gpu, nearest[gpu]) for gpu in gpus]
    only = [cards[0] for cards in nearest.values() if len(cards) == 1]
    shared = sorted({card for card in only if only.count(card) > 1})
    if shared and len(places) > len(shared):
        cure = (
            "map them: NVSHMEM_ENABLE_NIC_PE_MAPPING=1 and NVSHMEM_HCA_PE_MAPPING=CARD:PORT:COUNT"
        )
        text = f"several GPUs are nearest to {', '.join(shared)}, others idle"
        lines.append(Line("cards of gpus", WARNING, text, cure))
    return lines


def _common(one: Path, other: Path) -> int:
    """How many bridges both are below."""
    both = list(zip(one.parts, other.parts, strict=False))
    return next((i for i, (a, b) in enumerate(both) if a != b), len(both))


def _nearest(machine: Machine, gpu: str, cards: list[str]) -> Line:
    own = machine.text(f"sys/bus/pci/devices/{gpu}/numa_node")
    theirs = {machine.text(f"{CARDS}/{card}/device/numa_node") for card in cards}
    found = f"{', '.join(cards)}, NUMA node {own or 'unknown'}"
    if own in theirs or own in (None, "-1"):
        return Line(f"card of gpu {gpu}", OK, found)
    cure = "use a GPU and a card of one NUMA node (NVSHMEM_HCA_LIST); the way between is slow"
    where = ", ".join(sorted(node or "unknown" for node in theirs))
    return Line(f"card of gpu {gpu}", WARNING, f"{found}, card at {where}", cure)


def ibgda(machine: Machine) -> list[Line]:
    """What GPUs need to drive cards themselves; only jobs of several hosts do."""
    found = machine.folders(CARDS)
    if not found or not machine.gpu_wanted:
        return [Line("ibgda", ABSENT, "no RDMA card" if machine.gpu_wanted else "no GPU")]
    return [_ibgda_line(each) for each in findings(machine.root)]


def _ibgda_line(finding: Finding) -> Line:
    name = f"ibgda: {finding.name}"
    if finding.ok:
        return Line(name, OK, finding.found)
    broken = _needed() and not finding.only_slower
    return Line(name, BROKEN if broken else WARNING, finding.found, finding.cure)


CHECKS = (cards, affinity, ibgda)
