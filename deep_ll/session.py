"""The machinery behind a Buffer: which memory each call uses, in which order calls may come, and how they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native, checks, failures
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.handle import Handle, HandleFields
from deep_ll.plan import expected_bytes
from deep_ll.rounds import NUM_SLOTS, Pending, Round
from deep_ll.runtime import machine, memory
from deep_ll.views import combine_view, recv_views

if TYPE_CHECKING:
    from collections.abc import Callable

    from deep_ll._native import CallOptions, Shape
    from deep_ll.env import Settings
    from deep_ll.runtime.heap import Heap
    from deep_ll.views import RecvViews

_NS = 1_000_000_000


class Sizes(NamedTuple):
    """What distinguishes one kind of exchange from another; `num_topk` and `format` are of the call."""

    max_tokens: int
    hidden: int
    num_experts: int
    num_topk: int
    format: int


@dataclass
class _Slot:
    """This rank's own memory of the rounds that take turns."""

    ledger: torch.Tensor
    choices: torch.Tensor
    round: Round | None = None
    combine: Pending | None = None


class Kind(NamedTuple):
    """A kind of exchange with its views, by slot."""

    sizes: Sizes
    shape: Shape
    recv: tuple[RecvViews, RecvViews]
    combine: tuple[torch.Tensor, torch.Tensor]


class Session:
    """One rank's end of a buffer. `dispatch` and `combine` send; what they return receives."""

    def __init__(self, heap: Heap, settings: Settings, timeout_s: float, num_threads: int | None, expected: int | None) -> None:
        cores = machine.num_cores()
        threads = num_threads or settings.num_threads or max(1, cores // heap.num_local_ranks)
        self.rank, self.size = heap.rank, len(heap.maps)
        self.heap = heap
        self.window = _native.Window.carve(heap.num_bytes, self.size)
        self.exchange = _native.Exchange(
            bases=heap.bases,
            rank=heap.rank,
            heap_bytes=heap.num_bytes,
            num_threads=threads,
            crowded=heap.num_local_ranks * threads > cores,
            level=settings.cpu_level,
        )
        self.timeout_s = timeout_s
        self.expected = expected
        self.broken: str | None = None
        self._kinds: dict[Sizes, Kind] = {}
        self._slots = [_Slot(_empty(torch.uint8), _empty(torch.int32)) for _ in range(NUM_SLOTS)]
        self._asynchronous: list[Pending] = []
        self._taken: int | None = None  # the combine whose buffer was taken
        self._options = [_native.CallOptions(round(timeout_s * _NS), streaming) for streaming in (False, True)]
        self._streaming = settings.streaming

    # Kinds of exchanges ------------------------------------------------------------------------------------------

    def kind(self, sizes: Sizes) -> Kind:
        """The kind of exchange of these sizes, checked against the buffer when it is met for the first time."""
        known = self._kinds.get(sizes)
        if known is None:
            known = self._kinds[sizes] = self._new_kind(sizes)
        return known

    def _new_kind(self, sizes: Sizes) -> Kind:
        max_tokens, hidden, num_experts, num_topk, fmt = sizes
        checks.exchange_sizes(max_tokens, hidden, num_experts, self.size, num_topk, fp8=fmt != 0)
        shape = _native.Shape(self.size, self.rank, num_experts, max_tokens, hidden, num_topk, fmt)
        self._check_room(shape)
        if self.expected is None:
            self.expected = expected_bytes(shape)
            memory.check_fits(self.heap.num_local_ranks, self.expected, memory.available_bytes(), self.heap.num_bytes)
        recv = tuple(recv_views(self.heap, self.window, shape, slot) for slot in range(NUM_SLOTS))
        combine = tuple(combine_view(self.heap, self.window, shape, slot) for slot in range(NUM_SLOTS))
        return Kind(sizes, shape, (recv[0], recv[1]), (combine[0], combine[1]))

    def _check_room(self, shape: Shape) -> None:
        slot = self.window.recv.slot_bytes
        if max(shape.recv_bytes, shape.combine_bytes) <= slot and shape.num_experts <= self.window.max_experts:
            return
        raise ArgumentError(
            f"num_max_dispatch_tokens_per_rank={shape.max_tokens}, hidden={shape.hidden}, num_experts={shape.num_experts} need "
            f"a heap of {shape.heap_bytes} bytes a rank, this buffer has {self.heap.num_bytes}: make it with "
            "num_rdma_bytes=Buffer.get_low_latency_rdma_size_hint(...) of these numbers, or with the sizes themselves"
        )

    def _how(self, num_rows: int, row_bytes: int) -> CallOptions:
        """Streaming stores once the rows of all ranks on this host outgrow the shared cache."""
        streaming = self._streaming
        if streaming is None:
            streaming = num_rows * row_bytes * self.heap.num_local_ranks > machine.cache_bytes() // 4
        return self._options[streaming]

    # Dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(
        self, kind: Kind, x: torch.Tensor, topk_idx: torch.Tensor, stats: torch.Tensor | None
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, torch.Tensor], torch.Tensor, Handle, Pending]:
        """Sends this rank's tokens; returns what will have arrived when the last item is finished."""
        shape = kind.shape
        epoch = self.exchange.dispatched + 1 & 0xFFFFFFFF
        slot = self._slots[epoch % NUM_SLOTS]
        if slot.round is not None:
            slot.round.check_over(epoch)
        num_tokens = x.shape[0]
        ledger = self._ledger(slot, shape)
        bad = _native.copy_choices(topk_idx.data_ptr(), topk_idx.dtype == torch.int64, num_tokens, shape, ledger.data_ptr(), 0)
        if bad is not None:
            checks.choices(bad, shape, epoch)
        self.finish_asynchronous()
        recv_count = torch.empty(shape.num_local, dtype=torch.int32)
        layout_range = torch.empty((shape.num_local, self.size), dtype=torch.int64)
        how = self._how(num_tokens * shape.num_topk, shape.row_bytes)
        slot.round = this = Round(self, epoch, kind, ledger, num_tokens)
        sent = self.exchange.dispatch_send(
            shape, how, ledger.data_ptr(), x.data_ptr(), num_tokens, recv_count.data_ptr(), layout_range.data_ptr()
        )
        if not sent:
            slot.round = None
            self._fail(f"dispatch #{epoch}", shape, _greeting(shape))
        views = kind.recv[epoch % NUM_SLOTS]
        sizes = kind.sizes
        fields = HandleFields(views.src_info, layout_range, sizes.max_tokens, sizes.hidden, sizes.num_experts)
        this.pending = Pending(f"dispatch #{epoch}", lambda: self._receive(this, stats))
        return views.x, recv_count, Handle.of(fields, this), this.pending

    def _receive(self, this: Round, stats: torch.Tensor | None) -> None:
        self.check_usable()
        shape = this.kind.shape
        counters = 0 if stats is None else stats.data_ptr()
        how = self._options[0]
        if not self.exchange.dispatch_receive(shape, how, this.ledger.data_ptr(), this.epoch, counters):
            self._fail(f"dispatch #{this.epoch}", shape, _greeting(shape))

    def _ledger(self, slot: _Slot, shape: Shape) -> torch.Tensor:
        if slot.ledger.numel() < shape.ledger_bytes:
            slot.ledger = torch.empty(shape.ledger_bytes, dtype=torch.uint8)
        return slot.ledger

    # Combine -----------------------------------------------------------------------------------------------------

    def live_round(self, handle: object) -> Round:
        """The dispatch behind a handle, if its results are still there."""
        if not isinstance(handle, Handle):
            raise ArgumentError(f"handle is a {type(handle).__name__}: pass the handle that low_latency_dispatch returned, as it is")
        this = handle.round
        if this.owner is not self:
            raise OrderError(f"this handle of dispatch #{this.epoch} belongs to another buffer: use the buffer that made it")
        if self._slots[this.epoch % NUM_SLOTS].round is not this:
            raise OrderError(
                f"the handle of dispatch #{this.epoch} is too old: its results were overwritten, the last dispatch is "
                f"#{self.exchange.dispatched}; combine before the second next dispatch"
            )
        if this.pending is not None and not this.pending.done:
            if this.pending not in self._asynchronous:
                raise OrderError(f"dispatch #{this.epoch} was not received yet: call its hook before you use its handle")
            this.pending.finish()
        return this

    def take_combine_buffer(self, this: Round) -> torch.Tensor:
        """The memory of the next combine, once no peer reads its earlier content any more."""
        epoch = self._next_combine()
        if not self.exchange.await_credit(this.kind.shape, self._options[0]):
            self._fail(f"get_next_low_latency_combine_buffer (for combine #{epoch})", this.kind.shape, ())
        self._taken = epoch
        return this.kind.combine[epoch % NUM_SLOTS]

    def combine(
        self, this: Round, x: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor, out: torch.Tensor
    ) -> Pending:
        """Sends the outputs of this rank's experts (None: they are read in place); the result adds up into `out`."""
        shape = this.kind.shape
        epoch = self._next_combine()
        slot = self._slots[epoch % NUM_SLOTS]
        if x is None and self._taken != epoch:
            raise OrderError(
                "zero_copy=True, but the buffer of this combine was not taken: write the outputs into "
                "get_next_low_latency_combine_buffer(handle) first"
            )
        choices = self._copy_choices(this, slot, topk_idx, epoch)
        self.finish_asynchronous()
        how = self._how(this.num_tokens * shape.num_topk, 2 * shape.hidden)
        word = this.epoch << 1 & 0xFFFFFFFF | (x is None)
        address = 0 if x is None else x.data_ptr()
        if not self.exchange.combine_send(shape, how, this.ledger.data_ptr(), this.epoch, address):
            self._fail(f"combine #{epoch}", shape, (word,))
        keep = (topk_weights, out)

        def receive() -> None:
            self._gather(this, epoch, how, x is None, choices, *keep)

        earlier = self._slots[(epoch - 1) % NUM_SLOTS].combine
        slot.combine = pending = Pending(f"combine #{epoch}", receive, earlier)
        this.combined = True
        this.combines = [p for p in this.combines if not p.done] + [pending]
        return pending

    def _next_combine(self) -> int:
        epoch: int = self.exchange.combined + 1 & 0xFFFFFFFF
        before = self._slots[epoch % NUM_SLOTS].combine
        if before is not None and not before.done:
            if before not in self._asynchronous:
                raise OrderError(f"combine #{epoch} needs the place of {before.name}, which is not finished: call its hook first")
            before.finish()
        return epoch

    def _copy_choices(self, this: Round, slot: _Slot, topk_idx: torch.Tensor, epoch: int) -> torch.Tensor:
        shape = this.kind.shape
        if slot.choices.numel() < topk_idx.numel():
            slot.choices = torch.empty(shape.max_tokens * shape.num_topk, dtype=torch.int32)
        wide = topk_idx.dtype == torch.int64
        bad = _native.copy_choices(
            topk_idx.data_ptr(), wide, this.num_tokens, shape, slot.choices.data_ptr(), this.ledger.data_ptr()
        )
        if bad is not None:
            checks.choices(bad, shape, this.epoch)
        return slot.choices

    def _gather(
        self,
        this: Round,
        epoch: int,
        how: CallOptions,
        pulled: bool,
        choices: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        self.check_usable()
        shape = this.kind.shape
        arguments = (choices.data_ptr(), weights.data_ptr(), out.data_ptr(), this.num_tokens)
        if not self.exchange.combine_receive(shape, how, this.ledger.data_ptr(), this.epoch, epoch, pulled, *arguments):
            self._fail(f"combine #{epoch}", shape, (this.epoch << 1 & 0xFFFFFFFF | pulled,))

    # Ends --------------------------------------------------------------------------------------------------------

    def finish_later(self, pending: Pending) -> None:
        """Lets the next operation finish `pending`, if nobody does before."""
        self._asynchronous.append(pending)

    def finish_asynchronous(self) -> None:
        """Finishes what was left for later."""
        while self._asynchronous:
            self._asynchronous.pop(0).finish()

    def check_usable(self) -> None:
        """Raises if an earlier call left peers in an unknown state."""
        if self.broken is not None:
            raise OrderError(f"this buffer cannot be used any more, destroy it and make another: {self.broken}")

    def _fail(self, name: str, shape: Shape, ours: tuple[int, ...]) -> None:
        error = failures.why(self.exchange, shape, self.rank, name, self.timeout_s, ours)
        if self.exchange.disagreement() is None:
            self.broken = str(error)
        raise error


def _empty(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)


def _greeting(shape: Shape) -> tuple[int, ...]:
    return shape.num_experts, shape.max_tokens, shape.hidden, shape.num_topk, shape.format
