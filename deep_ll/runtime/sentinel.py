"""Sees when processes of peers end, and marks their heaps: who waits for them looks there."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from deep_ll import _native

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Sentinel:
    """Watches peers until it is stopped. Costs a thread that sleeps, and a descriptor a peer."""

    def __init__(self, owners: Iterable[tuple[int, torch.Tensor]]) -> None:
        """`owners`: processes by their numbers here, and their heaps as mapped here. Those with the
        number 0 cannot be seen from here (another PID namespace): of their end time-outs tell.
        """
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        watched = _watched((pid, heap) for pid, heap in owners if pid > 0)
        args = (self._stop, watched)
        self._thread = threading.Thread(target=_watch, args=args, name="deep_ll-gone", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        os.eventfd_write(self._stop, 1)
        if threading.current_thread() is not self._thread:  # a collection may happen there
            self._thread.join()


def _watched(owners: Iterable[tuple[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Heaps by descriptors of their owners' processes."""
    watched = {}
    for pid, heap in owners:
        try:
            watched[os.pidfd_open(pid)] = heap
        except ProcessLookupError:
            _native.mark_gone(heap.data_ptr())
        except OSError:  # not with this kernel, or not in this container
            continue
    return watched


def _watch(stop: int, watched: dict[int, torch.Tensor]) -> None:
    poller = select.poll()
    for fd in (stop, *watched):
        poller.register(fd, select.POLLIN)
    ended: set[int] = set()
    while stop not in ended:
        ended = {fd for fd, _ in poller.poll()}
        for fd in ended - {stop}:
            _native.mark_gone(watched.pop(fd).data_ptr())
            poller.unregister(fd)
            os.close(fd)
    for fd in (stop, *watched):
        os.close(fd)
