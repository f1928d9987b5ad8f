"""The machinery behind a Buffer: which memory a call uses, in which order calls may come, how they
end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native, checks, failures
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.handle import Handle
from deep_ll.kinds import Kind, Kinds
from deep_ll.rounds import NUM_SLOTS, Pending, Round
from deep_ll.runtime import machine

if TYPE_CHECKING:
    from typing import TypeAlias

    from deep_ll._native import Answer, CallOptions, Shape
    from deep_ll.checks import Tokens
    from deep_ll.env import Settings
    from deep_ll.runtime.heap import Heap

    # What a dispatch will have received when the last item is finished: x, recv_count, handle.
    Sent: TypeAlias = tuple[
        torch.Tensor | tuple[torch.Tensor, torch.Tensor], torch.Tensor, Handle, Pending
    ]

_NS = 1_000_000_000
_EPOCHS = 0xFFFFFFFF
_CACHE_SHARE = 8  # rows beyond this part of the cache are stored past it (docs/performance.md)
_WORTH_WAKING = 256 << 10  # bytes of rows from which a rank's other threads help


@dataclass
class _Slot:
    """This rank's own memory of the rounds that take turns."""

    ledger: torch.Tensor
    choices: torch.Tensor
    address: int = 0  # of the ledger
    num_bytes: int = 0
    round: Round | None = None
    combine: Pending | None = None

    def grow(self, num_bytes: int) -> None:
        """A larger ledger; rounds that still need the old one keep it."""
        self.ledger = torch.empty(num_bytes, dtype=torch.uint8)
        self.address, self.num_bytes = self.ledger.data_ptr(), num_bytes


class _Gathering(NamedTuple):
    """What the receiving half of a combine needs."""

    round: Round
    epoch: int
    how: CallOptions
    answer: Answer
    pulled: bool
    choices: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor


class Session:
    """One rank's end of a buffer. `dispatch` and `combine` send; what they return receives."""

    def __init__(
        self,
        heap: Heap,
        settings: Settings,
        timeout_s: float,
        num_threads: int | None,
        expected: int | None,
        row_major_scales: bool,
    ) -> None:
        cores = machine.num_cores()
        threads = num_threads or settings.num_threads or max(1, cores // heap.num_local_ranks)
        self.rank, self.size = heap.rank, len(heap.maps)
        self.heap = heap
        self.window = _native.Window.carve(heap.num_bytes, self.size)
        self.kinds = Kinds(heap, self.window, expected, row_major_scales)
        self.exchange = _native.Exchange(
            bases=heap.bases,
            rank=heap.rank,
            heap_bytes=heap.num_bytes,
            num_threads=threads,
            crowded=heap.num_local_ranks * threads > cores,
            level=machine.cpu_level(settings.cpu_level),
        )
        self.timeout_s = timeout_s
        self._identity = object()  # what rounds know of this session: they must not keep it alive
        self.broken: str | None = None
        self._slots = [_Slot(_empty(torch.uint8), _empty(torch.int32)) for _ in range(NUM_SLOTS)]
        self._asynchronous: list[Pending] = []
        self._taken: tuple[int, Round] | None = None  # whose combine buffer was taken
        combine = self.window.combine
        start = heap.bases[heap.rank] + combine.offset
        self._combine_memory = range(start, start + combine.slots * combine.slot_bytes)
        timeout_ns = round(timeout_s * _NS)
        self._options = {
            (streaming, small): _native.CallOptions(
                timeout_ns, streaming, small, not row_major_scales
            )
            for streaming in (False, True)
            for small in (False, True)
        }
        self._streaming = settings.streaming
        self._cached_bytes = machine.cache_bytes() // _CACHE_SHARE // heap.num_local_ranks

    def dispatch(self, kind: Kind, tokens: Tokens, stats: torch.Tensor | None, now: bool) -> Sent:
        """Sends this rank's tokens, and receives if it is to be `now`."""
        if self._asynchronous:
            self.finish_asynchronous()
        exchange = self.exchange
        epoch = exchange.dispatched + 1 & _EPOCHS
        slot = self._slots[epoch % NUM_SLOTS]
        if slot.round is not None:
            slot.round.check_over(epoch)
        if slot.num_bytes < kind.ledger_bytes:
            slot.grow(kind.ledger_bytes)
        counts, sizes = kind.counts[epoch % NUM_SLOTS], kind.sizes
        num_tokens = tokens.num_tokens
        index = epoch % NUM_SLOTS
        batch = _native.Batch(
            tokens.x, num_tokens, *counts.addresses, index, tokens.indices, tokens.wide
        )
        how = self._how(num_tokens * sizes.num_topk * kind.row_bytes)
        if not exchange.dispatch_send(kind.shape, how, slot.address, batch):
            self._refuse_dispatch(slot, kind, epoch)
        slot.round = this = Round(self._identity, epoch, kind, slot.ledger, num_tokens, how)
        this.pending = pending = Pending("dispatch", epoch, lambda: self._receive(this, stats))
        if now:
            pending.finish()
        views = kind.recv[epoch % NUM_SLOTS]
        fields = (sizes.max_tokens, sizes.hidden, sizes.num_experts)
        handle = Handle.of(this, views.src_info, counts.layout_range, *fields)
        return views.x, counts.recv_count, handle, pending

    def _refuse_dispatch(self, slot: _Slot, kind: Kind, epoch: int) -> None:
        bad = self.exchange.bad_choice()
        if bad is not None:
            checks.choices(bad, kind.shape, epoch)
        slot.round = None
        self._fail(f"dispatch #{epoch}", _greeting(kind.shape, epoch))

    def _receive(self, this: Round, stats: torch.Tensor | None) -> None:
        self.check_usable()
        shape = this.kind.shape
        counters = 0 if stats is None else stats.data_ptr()
        ledger = this.ledger.data_ptr()
        slot = this.epoch % NUM_SLOTS
        done = self.exchange.dispatch_receive(shape, this.how, ledger, slot, counters)
        if not done:
            self._fail(f"dispatch #{this.epoch}", _greeting(shape, this.epoch))

    def live_round(self, handle: object) -> Round:
        """The dispatch behind a handle, if its results are still there."""
        this = getattr(handle, "round", None)
        if not isinstance(handle, Handle) or not isinstance(this, Round):
            raise ArgumentError(
                f"handle is a {type(handle).__name__}: pass the handle that low_latency_dispatch "
                "returned, as it is"
            )
        if this.owner is not self._identity:
            raise OrderError(
                f"this handle of dispatch #{this.epoch} belongs to another buffer: use the buffer "
                "that made it"
            )
        if self._slots[this.epoch % NUM_SLOTS].round is not this:
            raise OrderError(
                f"the handle of dispatch #{this.epoch} is too old: its results were overwritten, "
                f"the last dispatch is #{self.exchange.dispatched}; combine before the second "
                "next dispatch"
            )
        if this.pending is not None and not this.pending.done:
            self._finish_if_asynchronous(
                this.pending,
                f"dispatch #{this.epoch} was not received yet: call its hook before you use its "
                "handle",
            )
        return this

    def take_combine_buffer(self, this: Round) -> torch.Tensor:
        """The memory of the next combine, once no peer reads its earlier content any more."""
        epoch = self._next_combine()
        slot = epoch % NUM_SLOTS
        free = self.exchange.await_credit(this.kind.shape, self._options[False, True], slot)
        if not free:
            self._fail(f"get_next_low_latency_combine_buffer (for combine #{epoch})", ())
        self._taken = epoch, this
        return this.kind.combine[slot]

    def combine(
        self,
        this: Round,
        x: torch.Tensor | None,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        out: torch.Tensor,
    ) -> Pending:
        """Sends the outputs of this rank's experts (None: they are read in place); the result
        adds up into `out`."""
        shape = this.kind.shape
        epoch = self._next_combine()
        self._check_source(this, epoch, x)
        choices = self._copy_choices(this, self._slots[epoch % NUM_SLOTS], topk_idx)
        self.finish_asynchronous()
        sizes = this.kind.sizes
        how = self._how(this.num_tokens * sizes.num_topk * 2 * sizes.hidden)
        answer = _native.Answer(this.epoch % NUM_SLOTS, epoch % NUM_SLOTS, x is None)
        gathering = _Gathering(this, epoch, how, answer, x is None, choices, topk_weights, out)
        address = 0 if x is None else x.data_ptr()
        sent = self.exchange.combine_send(shape, how, this.ledger.data_ptr(), answer, address)
        if not sent:
            self._fail(f"combine #{epoch}", _word(this, epoch, pulled=x is None))
        earlier = self._slots[(epoch - 1) % NUM_SLOTS].combine
        pending = Pending("combine", epoch, lambda: self._gather(gathering), earlier)
        self._slots[epoch % NUM_SLOTS].combine = pending
        this.combined = True
        this.combines = (*(p for p in this.combines if not p.done), pending)
        return pending

    def _next_combine(self) -> int:
        epoch = self.exchange.combined + 1 & _EPOCHS
        before = self._slots[epoch % NUM_SLOTS].combine
        if before is not None and not before.done:
            self._finish_if_asynchronous(
                before,
                f"combine #{epoch} needs the place of {before.name}, which is not finished: call "
                "its hook first",
            )
        return epoch

    def _check_source(self, this: Round, epoch: int, x: torch.Tensor | None) -> None:
        """Where outputs may lie: in taken memory with zero_copy, in other memory without."""
        if x is None and self._taken != (epoch, this):
            raise OrderError(
                "zero_copy=True, but the buffer of this combine was not taken with this handle: "
                "write the outputs into get_next_low_latency_combine_buffer(handle) first"
            )
        if x is not None and x.data_ptr() in self._combine_memory:
            raise OrderError(
                "x lies in the memory of get_next_low_latency_combine_buffer, where peers would "
                "write over it: pass zero_copy=True, or outputs in other memory"
            )

    def _copy_choices(self, this: Round, slot: _Slot, topk_idx: torch.Tensor) -> torch.Tensor:
        shape = this.kind.shape
        if slot.choices.numel() < topk_idx.numel():
            slot.choices = torch.empty(shape.max_tokens * shape.num_topk, dtype=torch.int32)
        wide = topk_idx.dtype == torch.int64
        to, sent = slot.choices.data_ptr(), this.ledger.data_ptr()
        bad = _native.copy_choices(topk_idx.data_ptr(), wide, this.num_tokens, shape, to, sent)
        if bad is not None:
            checks.choices(bad, shape, this.epoch)
        return slot.choices

    def _gather(self, g: _Gathering) -> None:
        self.check_usable()
        this = g.round
        total = _native.Sum(
            g.choices.data_ptr(), g.weights.data_ptr(), g.out.data_ptr(), this.num_tokens
        )
        ledger = this.ledger.data_ptr()
        done = self.exchange.combine_receive(this.kind.shape, g.how, ledger, g.answer, total)
        if not done:
            self._fail(f"combine #{g.epoch}", _word(this, g.epoch, g.pulled))

    def _how(self, num_bytes: int) -> CallOptions:
        """How to move rows of this size: past the caches if the ranks of this host together
        outgrow them, and by this rank's first thread alone if waking others takes longer."""
        streaming = num_bytes > self._cached_bytes if self._streaming is None else self._streaming
        return self._options[streaming, num_bytes < _WORTH_WAKING]

    def finish_later(self, pending: Pending) -> None:
        """Lets the next operation finish `pending`, if nobody does before."""
        self._asynchronous.append(pending)

    def finish_asynchronous(self) -> None:
        """Finishes what was left for later."""
        while self._asynchronous:
            self._asynchronous.pop(0).finish()

    def _finish_if_asynchronous(self, pending: Pending, otherwise: str) -> None:
        """Finishes what nobody but this session will; what has a hook is its caller's to finish."""
        if pending not in self._asynchronous:
            raise OrderError(otherwise)
        pending.finish()

    def check_usable(self) -> None:
        """Raises if an earlier call left peers in an unknown state."""
        if self.broken is not None:
            raise OrderError(
                f"this buffer cannot be used any more, destroy it and make another: {self.broken}"
            )

    def _fail(self, name: str, ours: tuple[int, ...]) -> None:
        error = failures.why(self.exchange, self.rank, name, self.timeout_s, ours)
        if self.exchange.disagreement() is None:
            self.broken = str(error)
        raise error


def _empty(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)


def _greeting(shape: Shape, epoch: int) -> tuple[int, ...]:
    sizes = (shape.num_experts, shape.max_tokens, shape.hidden, shape.num_topk, shape.format)
    return *sizes, epoch % NUM_SLOTS


def _word(this: Round, epoch: int, pulled: bool) -> tuple[int]:
    """What this rank tells its peers of a combine."""
    return ((this.epoch << 2 | epoch % NUM_SLOTS << 1) & _EPOCHS | pulled,)
