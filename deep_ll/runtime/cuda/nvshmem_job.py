"""NVSHMEM, started: which ranks, which GPU, under which settings."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deep_ll.errors import DeepLLError, PeerError
from deep_ll.runtime.cuda import network, nvshmem_settings, preflight
from deep_ll.runtime.cuda.driver import Module
from deep_ll.runtime.cuda.together import together
from deep_ll.runtime.cuda.untyped import Untyped

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.cuda.nvshmem_settings import Setting
    from deep_ll.runtime.group import Group

_STARTED = 2  # init_status: 1 is bootstrapped, 2 usable, 3 and 4 several ranks on a GPU


def _load_kernels(fatbin: Path, device_index: int) -> int:
    return Module.load(fatbin.read_bytes(), device_index).handle


@dataclass(frozen=True)
class Modules:
    """The seam to nvshmem4py and cuda.core.

    Attributes:
        core: nvshmem.core.
        bindings: nvshmem.bindings, the C functions.
        device: cuda.core.Device, which nvshmem4py wants.
        create_queues: network.create_queues.
        load_kernels: loads a fatbin on a device; gives the driver's handle of it.
    """

    core: Untyped
    bindings: Untyped
    device: Untyped
    create_queues: Callable[[int], list[int]] = network.create_queues
    load_kernels: Callable[[Path, int], int] = _load_kernels


@dataclass(frozen=True)
class Job:
    """The one job of NVSHMEM that a process can be in.

    Attributes:
        token: the same on all of its ranks and nowhere else.
        settings: under which it was started; empty if something else in this process started it.
        version: of its library.
        has_network: it was started to reach peers over one.
    """

    token: str
    rank: int
    size: int
    device_index: int
    settings: list[Setting]
    version: str = ""
    has_network: bool = False


def load() -> Modules:
    """Imports nvshmem4py.

    Raises:
        ImportError: it is not installed, or not for this Python.
    """
    return Modules(
        importlib.import_module("nvshmem.core"),
        importlib.import_module("nvshmem.bindings"),
        importlib.import_module("cuda.core").Device,
    )


def start(
    modules: Modules,
    group: Group,
    device: Device,
    num_bytes: int,
    wanted: nvshmem_settings.Wanted = nvshmem_settings.NO_NETWORK,
) -> Job:
    """Starts NVSHMEM for these ranks, or joins what this process has started. Collective.

    Args:
        modules: from `load()`.
        group: the ranks; NVSHMEM numbers them likewise.
        device: of this rank.
        num_bytes: of the first heap, for the settings.
        wanted: of a network.

    Raises:
        PeerError: another rank failed.
        DeepLLError: this rank did.
    """
    settings, running, card, version = [], False, None, ""
    with nvshmem_settings.wish_of_the_user():
        with together(group, "loading NVSHMEM"):
            # Before its library is loaded: it reads the environment only once.
            settings = nvshmem_settings.apply(num_bytes, wanted)
            version = _check_version(modules)
            running = int(modules.bindings.init_status()) >= _STARTED
            if group.rank == 0:
                card = (modules.core.get_unique_id(), secrets.token_hex(8))
        states = group.all_gather((running, card))
        _check_same_state([state for state, _ in states])
        assert states[0][1] is not None
        uid, token = states[0][1]
        with together(group, "starting NVSHMEM"):
            device.make_current()
            if not running:
                _init(modules, group, device, uid)
            _check_started(modules, group)
    own = [] if running else settings
    return Job(token, group.rank, group.size, device.index, own, version, running or wanted.network)


def _init(modules: Modules, group: Group, device: Device, uid: object) -> None:
    cuda_device = modules.device(device.index)
    cuda_device.set_current()
    modules.core.init(
        device=cuda_device,
        uid=uid,
        rank=group.rank,
        nranks=group.size,
        initializer_method="uid",
    )


def _check_version(modules: Modules) -> str:
    """The library that was loaded, which need not be the one that pip knows."""
    found = str(modules.core.get_version().libnvshmem_version)
    if preflight.numbers(found) < preflight.OLDEST_NVSHMEM:
        raise DeepLLError(
            f"the NVSHMEM that was loaded is {found}, deep_ll needs 3.4.5 or newer: "
            "pip install 'nvidia-nvshmem-cu13>=3.4.5', and see LD_LIBRARY_PATH"
        )
    return found


def _check_same_state(running: list[bool]) -> None:
    if any(running) and not all(running):
        ranks = [rank for rank, state in enumerate(running) if state]
        raise PeerError(
            f"NVSHMEM already runs in the processes of ranks {ranks} and not in the others: start "
            "it in all of them or in none"
        )


def _check_started(modules: Modules, group: Group) -> None:
    """NVSHMEM 3.4.5 returns as if all were well where it found no GPU, and crashes later."""
    status = int(modules.bindings.init_status())
    if status < _STARTED:
        raise DeepLLError(
            f"NVSHMEM did not get past finding its peers (init_status {status}): "
            "NVSHMEM_DEBUG=INFO in the environment says why"
        )
    found = int(modules.bindings.my_pe()), int(modules.bindings.n_pes())
    if found != (group.rank, group.size):
        raise DeepLLError(
            f"NVSHMEM calls this process PE {found[0]} of {found[1]}, the group rank {group.rank} "
            f"of {group.size}: it serves one group per process; make all buffers with the group "
            "that it was started for"
        )
