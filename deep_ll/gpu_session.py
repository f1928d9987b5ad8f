"""The machinery behind a Buffer on a GPU: each call is one launch, or two with a hook.

A call returns before its kernels ran. It allocates nothing, waits for nothing and loads nothing
once its kind is known, and what it gives kernels may be replayed: epochs are in device memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deep_ll import _native
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.gpu_memory import GpuKinds, GpuMemory
from deep_ll.gpu_operation import Operation, start
from deep_ll.gpu_streams import Streams, is_captured
from deep_ll.gpu_told import Told
from deep_ll.handle import Handle
from deep_ll.kernels import Kernels
from deep_ll.order import Order
from deep_ll.rounds import NUM_SLOTS, Round
from deep_ll.runtime.cuda import loopback, nvshmem, preflight
from deep_ll.runtime.cuda.device import Device
from deep_ll.runtime.cuda.together import together

if TYPE_CHECKING:
    from deep_ll.checks import Tokens
    from deep_ll.env import Settings
    from deep_ll.event import EventOverlap
    from deep_ll.kinds import Kind
    from deep_ll.open import Options
    from deep_ll.order import Sent
    from deep_ll.rounds import Hook
    from deep_ll.runtime.cuda.heap import GpuHeap
    from deep_ll.runtime.group import Group

_NS = 1_000_000_000


def open_gpu_session(
    group: Group, place: torch.device, num_bytes: int, settings: Settings, options: Options
) -> GpuSession:
    """Makes the heap and what works on it. Collective.

    Raises:
        GpuUnavailable: something that GPUs need is missing; the message has the cures.
        OrderError: a CUDA graph is being captured.
        PeerError: another rank failed; it says which and why.
    """
    with together(group, "checking what GPUs need"):
        device = _usable_device(place, nvshmem=not group.in_process)
    if group.in_process:
        heap = loopback.open_heap(group, num_bytes, device)
    else:
        heap = nvshmem.open_heap(group, num_bytes, device, options.allow_pcie_p2p)
        heap = replace(heap, settings=tuple(nvshmem.settings()), _release=heap.close)
    try:
        with together(group, "making what works on a heap"):
            num_sms = _num_sms(heap, device, options.num_sms or settings.num_sms)
            streams = Streams(device, shared=group.in_process and group.size > 1)
            session = GpuSession(GpuMemory.beside(heap, device), device, streams, num_sms, options)
    except Exception:
        heap.close()  # on all ranks, as it must be
        raise
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


class GpuSession(Order):
    """One rank's end of a buffer in GPU memory."""

    def __init__(
        self, memory: GpuMemory, device: Device, streams: Streams, num_sms: int, options: Options
    ) -> None:
        heap = memory.heap
        self.rank, self.device, self.timeout_s = heap.rank, heap.device, options.timeout_s
        self.window = _native.Window.carve(heap.num_bytes, heap.num_ranks)
        super().__init__(self.window, heap.bases[heap.rank])
        self._memory, self._streams = memory, streams
        self._kernels = Kernels(device, num_sms)
        self.kinds = GpuKinds(memory, options.row_major_scales, device, self._kernels)
        self._columns = not options.row_major_scales
        self._dispatched = self._combined = 0
        self.launches = _native.Launches(
            bases=heap.peer_bases_on_device.data_ptr(),
            rank=heap.rank,
            num_ranks=heap.num_ranks,
            heap_bytes=heap.num_bytes,
            device_state=memory.state.data_ptr(),
            host_state=memory.words.device_address,
            host_view=memory.words.address,
            timeout_ns=round(options.timeout_s * _NS),
        )
        self._told = Told(self.launches, heap.rank, options.timeout_s)
        self.heap = memory.as_heap()

    @property
    def dispatched(self) -> int:
        """The last dispatch that was started."""
        return self._dispatched

    @property
    def combined(self) -> int:
        """The last combine that was sent."""
        return self._combined

    def dispatch(self, kind: Kind, tokens: Tokens, stats: torch.Tensor | None, mode: int) -> Sent:
        """Launches what sends this rank's tokens, and what receives, as `mode` says."""
        self._hear()
        epoch = self.next_dispatch()
        slot = epoch % NUM_SLOTS
        ledger = self.kinds.memory_of(kind).ledgers[slot]
        counts, sizes = kind.counts[slot], kind.sizes
        batch = _native.Batch(
            tokens.x, tokens.num_tokens, *counts.addresses, slot, tokens.indices, tokens.wide
        )
        address, stats_at = ledger.data_ptr(), 0 if stats is None else stats.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, batch, self._columns, stats_at, halves)
            self._kernels.dispatch(kind, self.launches.dispatch(*args), stream)

        this = Round(self._identity, epoch, kind, ledger, tokens.num_tokens)
        later = () if stats is None else (stats,)
        operation = Operation("dispatch", epoch, launch, (*tokens.tensors, *later), later)
        this.pending, ending = start(operation, self._streams, mode, self.check_usable, None)
        self._dispatched = epoch
        self._turns[slot].round = this
        views = kind.recv[slot]
        fields = (sizes.max_tokens, sizes.hidden, sizes.num_experts)
        handle = Handle.of(this, views.src_info, counts.layout_range, *fields)
        return views.x, counts.recv_count, handle, *ending

    def take_combine_buffer(self, this: Round) -> torch.Tensor:
        """The memory of the next combine: what is put on this stream from now on finds it free."""
        self._hear()
        epoch = self.next_combine()
        slot = epoch % NUM_SLOTS
        answer = _native.Answer(this.epoch % NUM_SLOTS, slot, True)
        nothing = _native.Sum(0, 0, 0, 0)
        params = self.launches.combine(
            this.kind.shape, this.ledger.data_ptr(), answer, 0, nothing, 0
        )
        current = self._streams.current()
        self._streams.on(current, lambda stream: self._kernels.credit(this.kind, params, stream))
        self._taken = epoch, this
        return this.kind.combine[slot]

    def combine(
        self,
        this: Round,
        x: torch.Tensor | None,
        choice: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        mode: int,
    ) -> tuple[EventOverlap, Hook | None]:
        """Launches what sends the outputs of this rank's experts (None: they are read in place)
        and what adds up into `out`, as `mode` says. `choice`: topk_idx and topk_weights."""
        self._hear()
        topk_idx, weights = choice
        epoch = self.next_combine()
        self.check_source(this, epoch, x)
        slot, kind = epoch % NUM_SLOTS, this.kind
        answer = _native.Answer(this.epoch % NUM_SLOTS, slot, x is None)
        kept, wide = self.kinds.memory_of(kind).choices[slot], topk_idx.dtype == torch.int64
        addresses = (kept.data_ptr(), weights.data_ptr(), out.data_ptr())
        total = _native.Sum(*addresses, this.num_tokens, topk_idx.data_ptr(), wide)
        address, source = this.ledger.data_ptr(), 0 if x is None else x.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, answer, source, total, halves)
            self._kernels.combine(kind, self.launches.combine(*args), stream)

        used = (topk_idx, weights, out) if x is None else (x, topk_idx, weights, out)
        operation = Operation("combine", epoch, launch, used, (weights, out))
        # Combines are received in the order in which they were sent.
        earlier = self._turns[(epoch - 1) % NUM_SLOTS].combine
        pending, ending = start(operation, self._streams, mode, self.check_usable, earlier)
        self._combined = epoch
        self.keep_combine(epoch, this, pending)
        return ending

    def check_usable(self) -> None:
        """Raises what kernels have failed of since, or if an earlier call left the buffer broken.

        Not a bad choice: a hook calls this, and has to receive nevertheless."""
        if self._memory.closed:
            raise OrderError("this buffer was destroyed: call hooks before")
        if self.broken is None:
            error = self._told.failure()
            if error is not None:
                self.broken = str(error)
                raise error
        super().check_usable()

    def _hear(self) -> None:
        """Raises what kernels have told since the last call."""
        self.check_usable()
        self._told.raise_bad_choice()
