"""The machinery behind a Buffer on a GPU: each call is one launch, or two with a hook.

A call returns before its kernels ran. It allocates nothing, waits for nothing and loads nothing
once its kind is known, and what it gives kernels may be replayed: epochs are in device memory.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import torch

from deep_ll import _native
from deep_ll.errors import OrderError
from deep_ll.gpu_memory import GpuKinds
from deep_ll.gpu_operation import Operation, start
from deep_ll.gpu_told import Told
from deep_ll.kernels import Kernels
from deep_ll.order import Order
from deep_ll.rounds import NUM_SLOTS, Round

if TYPE_CHECKING:
    from deep_ll.checks import Tokens
    from deep_ll.event import EventOverlap
    from deep_ll.gpu_memory import GpuMemory
    from deep_ll.gpu_streams import Streams
    from deep_ll.kinds import Kind
    from deep_ll.open import Options
    from deep_ll.order import Sent, When
    from deep_ll.rounds import Hook
    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.store_group import StoreGroup
    from deep_ll.stats import Stats

_NS = 1_000_000_000
_MEET = 4  # csrc/ep/launch.hpp


class GpuSession(Order):
    """One rank's end of a buffer in GPU memory."""

    def __init__(
        self, memory: GpuMemory, device: Device, streams: Streams, num_sms: int, options: Options
    ) -> None:
        heap = memory.heap
        self.rank, self.device, self.timeout_s = heap.rank, heap.device, options.timeout_s
        self.window = _native.Window.carve(heap.num_bytes, heap.num_ranks)
        outputs = None if heap.network is None else self.window.outputs(0)
        super().__init__(self.window, heap.bases[heap.rank], outputs)
        self._memory, self._streams = memory, streams
        self._network = heap.network
        image = None if self._network is None else self._network.image
        self._kernels = Kernels(device, num_sms, image)
        self.kinds = GpuKinds(memory, options.row_major_scales, device, self._kernels)
        self._columns = not options.row_major_scales
        self._dispatched = self._combined = self._number = 0
        self.members = memory.members
        self.launches = _native.Launches(
            bases=heap.peer_bases_on_device.data_ptr(),
            rank=heap.rank,
            num_ranks=heap.num_ranks,
            heap_bytes=heap.num_bytes,
            device_state=memory.state.data_ptr(),
            host_state=memory.words.device_address,
            host_view=memory.words.address,
            timeout_ns=round(options.timeout_s * _NS),
            mask=0 if self.members is None else self.members.address,
            network=0 if self._network is None else self._network.content.data_ptr(),
            linked=0 if self._network is None else self._network.linked.data_ptr(),
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

    def dispatch(self, kind: Kind, tokens: Tokens, stats: torch.Tensor | None, when: When) -> Sent:
        """Launches what sends this rank's tokens, and what receives, as `when` says."""
        self.check()
        epoch = self.next_dispatch()
        slot = epoch % NUM_SLOTS
        ledger = self.kinds.memory_of(kind).ledgers[slot]
        counts = kind.counts[slot]
        batch = _native.Batch(
            tokens.x, tokens.num_tokens, *counts.addresses, slot, tokens.indices, tokens.wide
        )
        address, stats_at = ledger.data_ptr(), 0 if stats is None else stats.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, batch, self._columns, stats_at, halves, when.costs)
            self._wait_for(when.timeout_s)
            self._kernels.dispatch(kind, self.launches.dispatch(*args), stream)

        this = Round(self._identity, epoch, kind, ledger, tokens.num_tokens)
        later = tuple(tensor for tensor in (stats, when.waits) if tensor is not None)
        operation = Operation("dispatch", epoch, launch, (*tokens.tensors, *later), later)
        this.pending, ending = start(operation, self._streams, when.mode, self.check_usable, None)
        self._dispatched = epoch
        return *self.keep_dispatch(this), *ending

    def _wait_for(self, timeout_s: float) -> None:
        """What is launched from now on waits so long."""
        self.launches.timeout_ns = round(timeout_s * _NS)
        self._told.timeout_s = timeout_s

    def meet(self, kind: Kind, timeout_s: float) -> None:
        """What is put on this stream from now on comes after all ranks that are not left out have
        come here."""
        self.check()
        ledger = self.kinds.memory_of(kind).ledgers[0].data_ptr()
        self._wait_for(timeout_s)
        nothing = _native.Answer(0, 0, True, False, 0), 0, _native.Sum(0, 0, 0, 0)
        params = self.launches.combine(kind.shape, ledger, *nothing, _MEET)
        current = self._streams.current()
        self._streams.on(current, lambda stream: self._kernels.credit(kind, params, stream))

    def take_combine_buffer(self, this: Round, timeout_s: float) -> torch.Tensor:
        """The memory of the next combine: what is put on this stream from now on finds it free."""
        self.check()
        epoch = self.next_combine()
        slot = epoch % NUM_SLOTS
        answer = _native.Answer(this.epoch % NUM_SLOTS, slot, True, False, this.layout_range)
        nothing = _native.Sum(0, 0, 0, 0)
        self._wait_for(timeout_s)
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
        when: When,
        logfmt: bool,
    ) -> tuple[EventOverlap, Hook | None]:
        """Launches what sends the outputs of this rank's experts (None: they are read in place)
        and what adds up into `out`, as `when` says. `choice`: topk_idx and topk_weights.
        `logfmt`: rows travel in it."""
        self.check()
        topk_idx, weights = choice
        epoch = self.next_combine()
        self.check_source(this, epoch, x)
        slot, kind = epoch % NUM_SLOTS, this.kind
        slots = (this.epoch % NUM_SLOTS, slot)
        # Behind a network nobody reads outputs in place: they are pushed from where they are.
        pulled = x is None and self._network is None
        answer = _native.Answer(*slots, pulled, logfmt, this.layout_range)
        kept, wide = self.kinds.memory_of(kind).choices[slot], topk_idx.dtype == torch.int64
        addresses = (kept.data_ptr(), weights.data_ptr(), out.data_ptr())
        total = _native.Sum(*addresses, this.num_tokens, topk_idx.data_ptr(), wide)
        outputs = kind.combine[slot] if x is None else x
        address, source = this.ledger.data_ptr(), 0 if pulled else outputs.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, answer, source, total, halves, when.costs)
            self._wait_for(when.timeout_s)
            self._kernels.combine(kind, self.launches.combine(*args), stream)

        later = (weights, out) if when.waits is None else (weights, out, when.waits)
        used = (topk_idx, *later) if x is None else (x, topk_idx, *later)
        operation = Operation("combine", epoch, launch, used, later)
        # Combines are received in the order in which they were sent.
        earlier = self._turns[(epoch - 1) % NUM_SLOTS].combine
        pending, ending = start(operation, self._streams, when.mode, self.check_usable, earlier)
        self._combined = epoch
        self.keep_combine(epoch, this, pending)
        return ending

    def rejoin(self, group: StoreGroup, rank: int, timeout_s: float) -> None:
        """Not on GPUs: memory of NVSHMEM is allocated by all ranks together."""
        raise OrderError(
            f"rejoin({rank}): a GPU's rank cannot come back into a buffer; destroy it and make a "
            "new one on all ranks"
        )

    def stats(self) -> Stats:
        """Not on GPUs, where only what a call is given to count in is counted."""
        raise OrderError(
            "stats() is of buffers on CPUs: pass dispatch_wait_recv_cost_stats and "
            "combine_wait_recv_cost_stats"
        )

    def show(self, number: int, folder: str | None) -> None:
        """Which buffer this is. No signal tells of it, and there is no trace."""
        self._number = number
        if folder is not None:
            warnings.warn(
                f"DEEP_LL_TRACE={folder!r} is of buffers on CPUs: on GPUs use a profiler, which "
                "shows kernels deep_ll::hN::dispatch and deep_ll::hN::combine",
                stacklevel=4,
            )

    def where(self) -> str:
        """What this rank has launched: how far kernels are only they know."""
        state = "a kernel has given up" if self.launches.failed() else "no kernel has given up"
        return (
            f"deep_ll: rank {self.rank} of {self.heap.num_ranks}, process {os.getpid()}, "
            f"buffer #{self._number}: launched "
            f"dispatch #{self._dispatched} and combine #{self._combined}; {state}"
        )

    def close(self) -> None:
        """Gives the memory back. Collective."""
        self.heap.close()

    def comm_stream(self) -> torch.cuda.Stream:
        """Where operations with `async_finish` run."""
        return self._streams.side

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

    def check(self) -> None:
        """Raises what kernels have told since the last call."""
        self.check_usable()
        self._told.raise_bad_choice()
