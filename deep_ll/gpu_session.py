"""The machinery behind a Buffer on a GPU: each call is one launch, or two with a hook.

A call returns before its kernels ran. What kernels find out (a peer that did not come, a choice
that is no expert) they write where this process can read it; the next call raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native, failures
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.event import EventOverlap
from deep_ll.handle import Handle
from deep_ll.kernels import Kernels
from deep_ll.kinds import Kind, Kinds
from deep_ll.order import ASYNC, HOOK, Order
from deep_ll.rounds import NUM_SLOTS, Pending, Round
from deep_ll.runtime.cuda import loopback, nvshmem, preflight
from deep_ll.runtime.cuda.device import Device
from deep_ll.runtime.cuda.host_memory import host_memory
from deep_ll.runtime.cuda.streams import is_capturing, wait_for

if TYPE_CHECKING:
    from deep_ll.checks import Tokens
    from deep_ll.env import Settings
    from deep_ll.kinds import Sizes
    from deep_ll.open import Options
    from deep_ll.order import Sent
    from deep_ll.rounds import Hook
    from deep_ll.runtime.cuda.heap import GpuHeap
    from deep_ll.runtime.group import Group

_NS = 1_000_000_000
_SEND, _RECEIVE = 1, 2
_BOTH = _SEND | _RECEIVE
_REMEDY = "This buffer can only be destroyed now"


class _Memory(NamedTuple):
    """Device memory of one kind of exchange, by slot. A recorded graph knows these addresses, so
    it is never given back while the buffer lives."""

    ledgers: tuple[torch.Tensor, torch.Tensor]
    choices: tuple[torch.Tensor, torch.Tensor]


def open_gpu_session(
    group: Group, place: torch.device, num_bytes: int, settings: Settings, options: Options
) -> GpuSession:
    """Makes the heap and what works on it. Collective.

    Raises:
        GpuUnavailable: something that GPUs need is missing; the message has the cures.
        OrderError: a CUDA graph is being captured.
    """
    index = place.index or 0
    preflight.require(index, nvshmem=not group.in_process)
    device = Device.of(place)
    if is_capturing(device.current_stream()):
        raise OrderError("a buffer cannot be made while a CUDA graph is captured: make it before")
    if group.in_process:
        heap = loopback.open_heap(group, num_bytes, device)
    else:
        heap = nvshmem.open_heap(group, num_bytes, device, options.allow_pcie_p2p)
    return GpuSession(heap, device, settings, options)


@dataclass(frozen=True)
class _Later:
    """The receiving half of an operation with a hook: it runs on the stream of the sending one."""

    session: GpuSession
    launch: Callable[[int, int], None]
    stream: int
    used: tuple[torch.Tensor, ...]

    def __call__(self) -> None:
        self.session.check_usable()
        self.session._on(self.stream, self.launch, _RECEIVE)


@dataclass(frozen=True)
class _SideEnd:
    """The end of what was put on the side stream."""

    device: Device
    side: int

    def finish(self) -> None:
        """Lets the current stream wait for it."""
        wait_for(self.device.current_stream(), self.side)


def _nothing() -> None:
    """What is left of an operation that was launched whole."""


class GpuSession(Order):
    """One rank's end of a buffer in GPU memory."""

    def __init__(self, heap: GpuHeap, device: Device, settings: Settings, options: Options) -> None:
        self._shares_device = "same GPU" in heap.links
        self.rank, self.heap, self.device = heap.rank, heap, heap.device
        self.window = _native.Window.carve(heap.num_bytes, heap.num_ranks)
        super().__init__(self.window, heap.bases[heap.rank])
        self.kinds = Kinds(heap, self.window, None, options.row_major_scales)
        self.timeout_s, self._columns = options.timeout_s, not options.row_major_scales
        self._gpu, self._side = device, device.side_stream()
        self._last_stream: int | None = None
        self._dispatched = self._combined = 0
        self._memory: dict[Sizes, _Memory] = {}
        # All blocks of all ranks of a GPU must run at once: they wait for each other.
        most = device.num_sms // (heap.num_ranks if self._shares_device else 1)
        num_sms = min(options.num_sms or settings.num_sms, most)
        self._kernels = Kernels(device, num_sms)
        self._told = host_memory(_native.Launches.HOST_STATE_BYTES, device.index)
        self._state = device.zeros(_native.Launches.DEVICE_STATE_BYTES, torch.uint8)
        self.launches = _native.Launches(
            bases=heap.peer_bases_on_device.data_ptr(),
            rank=heap.rank,
            num_ranks=heap.num_ranks,
            heap_bytes=heap.num_bytes,
            device_state=self._state.data_ptr(),
            host_state=self._told.device_address,
            host_view=self._told.address,
            timeout_ns=round(options.timeout_s * _NS),
        )
        device.synchronize()

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
        self._raise_what_kernels_told()
        epoch = self.next_dispatch()
        slot = epoch % NUM_SLOTS
        ledger = self._memory_of(kind).ledgers[slot]
        counts, sizes = kind.counts[slot], kind.sizes
        batch = _native.Batch(
            tokens.x, tokens.num_tokens, *counts.addresses, slot, tokens.indices, tokens.wide
        )
        address, stats_at = ledger.data_ptr(), 0 if stats is None else stats.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, batch, self._columns, stats_at, halves)
            self._kernels.dispatch(kind, self.launches.dispatch(*args), stream)

        this = Round(self._identity, epoch, kind, ledger, tokens.num_tokens)
        used = tokens.tensors if stats is None else (*tokens.tensors, stats)
        this.pending, ending = self._start(("dispatch", epoch), launch, mode, used)
        self._dispatched = epoch
        self._turns[slot].round = this
        views = kind.recv[slot]
        fields = (sizes.max_tokens, sizes.hidden, sizes.num_experts)
        handle = Handle.of(this, views.src_info, counts.layout_range, *fields)
        return views.x, counts.recv_count, handle, *ending

    def take_combine_buffer(self, this: Round) -> torch.Tensor:
        """The memory of the next combine: what is put on this stream from now on finds it free."""
        self._raise_what_kernels_told()
        epoch = self.next_combine()
        slot = epoch % NUM_SLOTS
        answer = _native.Answer(this.epoch % NUM_SLOTS, slot, True)
        nothing = _native.Sum(0, 0, 0, 0)
        args = (this.kind.shape, this.ledger.data_ptr(), answer, 0, nothing, 0)

        def launch(stream: int, _halves: int) -> None:
            self._kernels.credit(this.kind, self.launches.combine(*args), stream)

        self._on(self._stream(), launch, _SEND)
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
        self._raise_what_kernels_told()
        topk_idx, weights = choice
        epoch = self.next_combine()
        self.check_source(this, epoch, x)
        slot, kind = epoch % NUM_SLOTS, this.kind
        answer = _native.Answer(this.epoch % NUM_SLOTS, slot, x is None)
        kept = self._memory_of(kind).choices[slot]
        total = _native.Sum(
            kept.data_ptr(),
            weights.data_ptr(),
            out.data_ptr(),
            this.num_tokens,
            topk_idx.data_ptr(),
            topk_idx.dtype == torch.int64,
        )
        address, source = this.ledger.data_ptr(), 0 if x is None else x.data_ptr()

        def launch(stream: int, halves: int) -> None:
            args = (kind.shape, address, answer, source, total, halves)
            self._kernels.combine(kind, self.launches.combine(*args), stream)

        used = (topk_idx, weights, out) if x is None else (x, topk_idx, weights, out)
        pending, ending = self._start(("combine", epoch), launch, mode, used)
        self._combined = epoch
        self.keep_combine(epoch, this, pending)
        return ending

    def _start(
        self,
        which: tuple[str, int],
        launch: Callable[[int, int], None],
        mode: int,
        used: tuple[torch.Tensor, ...],
    ) -> tuple[Pending, tuple[EventOverlap, Hook | None]]:
        """Puts an operation on a stream; what is left of it is handed out. What kernels of the
        side stream or of later launches have `used` lives as long as they need it."""
        stream = self._stream()
        if mode == HOOK:
            self._on(stream, launch, _SEND)
            later = _Later(self, launch, stream, used)
            pending = Pending(*which, later, self._earlier(*which))
            return pending, (EventOverlap(), pending.as_hook())
        pending = Pending(*which, _nothing)
        pending.done = True
        if mode == ASYNC:
            side = self._side.number
            wait_for(side, stream)
            self._on(side, launch, _BOTH)
            self._side.keep(used)
            return pending, (EventOverlap(_SideEnd(self._gpu, side)), None)
        self._on(stream, launch, _BOTH)
        return pending, (EventOverlap(), None)

    def _on(self, stream: int, launch: Callable[[int, int], None], halves: int) -> None:
        """Launches on a stream, after whatever the buffer has put on another one: its kernels must
        not overlap. A graph that is captured begins anew: its caller sees to what came before."""
        last, self._last_stream = self._last_stream, stream
        if last not in (None, stream) and is_capturing(last) == is_capturing(stream):
            wait_for(stream, last)
        launch(stream, halves)

    def _earlier(self, name: str, epoch: int) -> Pending | None:
        """What must be received first."""
        return self._turns[(epoch - 1) % NUM_SLOTS].combine if name == "combine" else None

    def _stream(self) -> int:
        """Where the caller puts its work now."""
        stream = self._gpu.current_stream()
        if stream == 0 and self._shares_device:
            raise OrderError(
                "ranks that share a GPU wait for each other's kernels, and the default stream runs "
                "one after the other: give each rank a stream of its own, "
                "with torch.cuda.stream(torch.cuda.Stream())"
            )
        return stream

    def _memory_of(self, kind: Kind) -> _Memory:
        memory = self._memory.get(kind.sizes)
        if memory is not None:
            return memory
        if is_capturing(self._gpu.current_stream()):
            raise OrderError(
                f"the first call with {kind.sizes} needs memory and kernels, which cannot be got "
                "while a CUDA graph is captured: run it once before"
            )
        sizes = kind.sizes
        self._kernels.load(kind)
        numbers = sizes.max_tokens * sizes.num_topk
        memory = self._memory[sizes] = _Memory(
            self._pair(kind.ledger_bytes, torch.uint8), self._pair(numbers, torch.int32)
        )
        return memory

    def _pair(self, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gpu.empty(count, dtype), self._gpu.empty(count, dtype)

    def check_usable(self) -> None:
        """Raises what kernels have told since, and if an earlier call left the buffer broken."""
        self._raise_what_kernels_told()
        super().check_usable()

    def _raise_what_kernels_told(self) -> None:
        bad = self.launches.take_bad_choice()
        if bad is not None:
            self._refuse_choice(*bad)
        if self.launches.failed() and self.broken is None:
            error = failures.why(
                self.launches, self.rank, "an earlier operation", self.timeout_s, _REMEDY
            )
            self.broken = str(error)
            raise error

    @staticmethod
    def _refuse_choice(what: int, token: int, choice: int, value: int) -> None:
        reasons = {
            1: "no expert has this number",
            2: "the token chose this expert before",
            3: "this is not what was dispatched",
        }
        raise ArgumentError(
            f"topk_idx[{token}, {choice}] of an earlier dispatch or combine is {value}: "
            f"{reasons[what]}; it counted as -1. Kernels found it, so its results are those of -1"
        )
