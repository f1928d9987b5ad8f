"""Ranks that are threads and share one GPU: all kernels of an exchange on a machine with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deep_ll.errors import ArgumentError
from deep_ll.runtime.cuda.heap import GpuHeap, bases_on
from deep_ll.runtime.cuda.together import together

if TYPE_CHECKING:
    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.group import Group


def open_heap(group: Group, num_bytes: int, device: Device) -> GpuHeap:
    """A heap for each of these threads, in plain memory of the device. Collective.

    Args:
        group: ranks that are threads of this process.
        num_bytes: size of one rank's heap.
        device: the same for all ranks.

    Raises:
        ArgumentError: the ranks are processes.
        PeerError: another rank failed; it says why.
    """
    if not group.in_process:
        raise ArgumentError(
            "the loopback runtime needs ranks that are threads of one process: "
            "deep_ll.testing.run_ranks(world_size, fn)"
        )
    with together(group, f"making a heap of {num_bytes} bytes on GPU {device.index}"):
        device.make_current()
        memory = device.zeros(num_bytes, torch.uint8)
        # Peers write from streams of their own as soon as they know the address.
        device.synchronize()
    indices = group.all_gather(device.index)
    if len(set(indices)) > 1:
        raise ArgumentError(
            f"ranks of one loopback buffer must share a GPU, these chose {indices}: pass the same "
            "device on all"
        )
    bases = group.all_gather(memory.data_ptr())
    table = bases_on(device, bases)
    # Peers hold plain addresses: nobody's memory may go while another rank still runs kernels.
    links = tuple("own" if peer == group.rank else "same GPU" for peer in range(group.size))
    return GpuHeap(
        rank=group.rank,
        bases=bases,
        num_bytes=num_bytes,
        memory=memory,
        num_local_ranks=group.size,
        peer_bases_on_device=table,
        links=links,
        _release=lambda: _meet(group, device),
    )


def _meet(group: Group, device: Device) -> None:
    with together(group, "closing the heap"):
        device.synchronize()
