"""Opens a GPU session: what it needs is checked first, and all ranks take each step or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deep_ll.errors import ArgumentError, LinkUnavailable, OrderError
from deep_ll.gpu_memory import GpuMemory
from deep_ll.gpu_session import GpuSession
from deep_ll.gpu_streams import Streams, is_captured
from deep_ll.runtime.cuda import loopback, nvshmem, preflight
from deep_ll.runtime.cuda.demand import Demand
from deep_ll.runtime.cuda.device import Device
from deep_ll.runtime.cuda.together import together

if TYPE_CHECKING:
    from deep_ll.env import Settings
    from deep_ll.open import Options
    from deep_ll.runtime.cuda.heap import GpuHeap
    from deep_ll.runtime.group import Group
    from deep_ll.runtime.paths import Wish


def open_gpu_session(
    group: Group,
    place: torch.device,
    num_bytes: int,
    settings: Settings,
    options: Options,
    wish: Wish,
) -> GpuSession:
    """Makes the heap and what works on it. Collective.

    Raises:
        GpuUnavailable: something that GPUs need is missing; the message has the cures.
        LinkUnavailable: peers may not be reached by load and store, and there is no network.
        OrderError: a CUDA graph is being captured.
        PeerError: another rank failed; it says which and why.
    """
    with together(group, "checking what GPUs need"):
        if wish.refused and group.in_process and group.size > 1:
            raise LinkUnavailable(
                f"{wish.refused}, but ranks that are threads share a GPU and reach each other by "
                "load and store alone: leave it out"
            )
        device = _usable_device(place, nvshmem=not group.in_process)
    if group.in_process:
        heap = loopback.open_heap(group, num_bytes, device)
    else:
        demand = Demand(wish, settings.force_link)
        heap = nvshmem.open_heap(group, num_bytes, device, options.allow_pcie_p2p, demand)
        heap = replace(heap, settings=tuple(nvshmem.settings()), _release=heap.close)
    session: GpuSession | None = None
    try:
        with together(group, "making what works on a heap"):
            _refuse_shrinking(heap, options.enable_shrink)
            num_sms = _num_sms(heap, device, options.num_sms or settings.num_sms)
            streams = Streams(device, shared=group.in_process and group.size > 1)
            session = GpuSession(
                GpuMemory.beside(heap, device, options.enable_shrink),
                device,
                streams,
                num_sms,
                options,
            )
    except Exception:
        # On all ranks, as it must be.
        (heap if session is None else session.heap).close()
        raise
    assert session is not None
    return session


def _usable_device(place: torch.device, nvshmem: bool) -> Device:
    index = place.index
    if index is None:
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    preflight.require(index, nvshmem)
    device = Device.of(torch.device(place.type, index))
    if is_captured(device.current_stream()):
        raise OrderError("a buffer cannot be made while a CUDA graph is captured: make it before")
    return device


def _refuse_shrinking(heap: GpuHeap, enable_shrink: bool) -> None:
    if heap.network is not None and enable_shrink:
        raise ArgumentError(
            "enable_shrink=True: ranks cannot be left out yet where GPUs have peers behind a "
            "network; make the buffer without it"
        )


def _num_sms(heap: GpuHeap, device: Device, wanted: int) -> int:
    """How many blocks a launch has. All of them wait for each other, so those of all ranks on a
    GPU must run at once."""
    ranks = 1 + heap.links.count("same GPU")
    most = device.num_sms // ranks
    if most < 1:
        raise ArgumentError(
            f"{ranks} ranks share GPU {device.index}, which has {device.num_sms} multiprocessors: "
            "each rank needs one at least"
        )
    return min(wanted, most)
