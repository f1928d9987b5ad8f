"""What a buffer tells of this rank's own end: memory, stream, paths, what went wrong."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deep_ll.errors import ArgumentError, OrderError
from deep_ll.event import EventHandle, EventOverlap
from deep_ll.members import MaskCalls
from deep_ll.normal_mode import NormalMode
from deep_ll.plan import Plan, plan_of
from deep_ll.runtime import memory
from deep_ll.runtime.cuda.images import description
from deep_ll.runtime.paths import LINK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from deep_ll.open import AnySession
    from deep_ll.runtime.paths import Path
    from deep_ll.stats import Stats

_ALIGN = 64


def _rows_memory(
    session: AnySession, dtype: torch.dtype, size: Sequence[int] | None, offset: int
) -> torch.Tensor:
    """The part of the heap that holds rows and nothing else; signals and counts are not in it.

    Raises:
        ArgumentError: it is not so large.
        HeapMemoryError: this host has not the memory that writing all of it takes.
        OrderError: an operation was not received yet.
    """
    recv, combine = session.window.recv, session.window.combine
    num_bytes = combine.offset + combine.slots * combine.slot_bytes - recv.offset
    if offset % _ALIGN != 0 or not 0 <= offset <= num_bytes:
        raise ArgumentError(
            f"offset is {offset}: it must be a multiple of {_ALIGN} from 0 to {num_bytes}, the "
            "bytes of this buffer that hold rows"
        )
    most = (num_bytes - offset) // dtype.itemsize
    sizes = (most,) if size is None else tuple(size)
    count = math.prod(sizes)
    if not 0 <= count <= most or any(one < 0 for one in sizes):
        raise ArgumentError(
            f"size is {sizes}, {count} of {dtype}: there are {most} from offset {offset} on"
        )
    heap = session.heap
    if heap.device.type == "cpu":
        touched = count * dtype.itemsize
        available = memory.available_bytes()
        memory.check_fits(heap.num_local_ranks, touched, available, heap.num_bytes)
    session.forget_rounds()
    return heap.view(recv.offset + offset, dtype, *sizes)


@dataclass(frozen=True)
class Runtime:
    """What callers of DeepEP ask of `buffer.runtime`."""

    session: AnySession

    def is_available(self) -> bool:
        """Whether the buffer can be used."""
        return self.session.broken is None

    def is_internode_available(self) -> bool:
        """Whether there are ranks that are reached over the network."""
        return any(path.kind == LINK for path in self.session.heap.paths)

    def get_local_device_id(self) -> int:
        """The GPU's number; -1 on CPUs."""
        index = self.session.heap.device.index
        return -1 if index is None else index


class OwnEnd(NormalMode, MaskCalls):
    """The calls of a Buffer that no peer takes part in."""

    _session: AnySession | None

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: Sequence[int] | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """This rank's memory for rows, raw; counts and signals are not in it, so writing there,
        `zero_()` included, harms nothing but rows.

        It gives up what is in it: handles of earlier dispatches cannot be combined any more. Peers
        may write there from this rank's next dispatch on, and with `zero_copy` they may still read
        there: write only between rounds, when all ranks are through (after a barrier).

        Args:
            dtype: of the result.
            size: of the result; default: one dimension, all there is.
            offset: bytes to leave out at the start, a multiple of 64.
            use_rdma_buffer: must be True: there is no second buffer.

        Raises:
            ArgumentError: there are not so many bytes.
            HeapMemoryError: this host has not the memory that writing all of it takes.
            OrderError: an operation was not received yet: call its hook first.
        """
        if not use_rdma_buffer:
            raise ArgumentError(
                "use_rdma_buffer=False: deep_ll has one buffer, pass use_rdma_buffer=True"
            )
        return _rows_memory(self._usable(), dtype, size, offset)

    def get_comm_stream(self) -> torch.cuda.Stream | torch.cpu.Stream:
        """The stream that operations with `async_finish` run on; on CPUs torch's stand-in."""
        return self._usable().comm_stream()

    @staticmethod
    def capture() -> EventOverlap:
        """What was put on the current stream so far, as an event to wait for."""
        return EventOverlap(EventHandle())

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether this installation has kernels for GPUs of compute capability 9.0."""
        return any("_90" in arch for arch in description().get("archs", ()))

    def paths(self) -> list[Path]:
        """How each rank is reached: kind "self", "p2p" (its memory is mapped here) or "link" (over
        the network), with the reason. By rank.
        """
        return list(self._usable().heap.paths)

    def check(self) -> None:
        """Raises what went wrong in calls that have returned.

        On a GPU kernels find things out later, and the next call raises them. A loop that only
        replays CUDA graphs makes no calls: it asks here, which costs no synchronization.

        Raises:
            ArgumentError: a choice that is none; it counted as -1.
            PeerError, PeerTimeout: ranks disagreed, or one did not come.
            OrderError: the buffer cannot be used any more.
        """
        self._usable().check()

    def stats(self) -> Stats:
        """What this rank has done and whom it has waited for, since the buffer was made. On CPUs;
        docs/observing.md.

        Raises:
            OrderError: the buffer is on a GPU, or was destroyed.
        """
        return self._usable().stats()

    def dump(self, file: TextIO | None = None) -> None:
        """Prints where this rank is: operation, phase, epoch, and whom it waits for. May be called
        by any thread, while another one is in a call. On CPUs SIGUSR1 prints the same.

        Args:
            file: where to; default: sys.stderr.
        """
        session = self._session
        text = "deep_ll: this buffer was destroyed" if session is None else session.where()
        print(text, file=sys.stderr if file is None else file, flush=True)

    def plan(self) -> Plan:
        """What every byte of this rank's heap is for, and how much of it will be touched.
        `print()` shows a table.
        """
        session = self._usable()
        return plan_of(session.window, session.heap, session.kinds.expected)

    def _usable(self) -> AnySession:
        session = self._session
        if session is None:
            raise OrderError("this buffer was destroyed: make another one")
        if session.broken is not None:
            session.check_usable()
        return session
