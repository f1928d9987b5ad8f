"""The machinery behind a Buffer on CPUs: which memory a call uses, how it is waited for, how it
ends."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from deep_ll import _native, checks, failures
from deep_ll.errors import OrderError
from deep_ll.event import EventOverlap
from deep_ll.kinds import Kind, Kinds
from deep_ll.members import Members, mask_bytes
from deep_ll.order import ASYNC, EPOCHS, HOOK, NOW, Order, When
from deep_ll.rounds import NUM_SLOTS, Pending, Round
from deep_ll.runtime import machine
from deep_ll.runtime.paths import LINK
from deep_ll.runtime.rejoin import Place, welcome
from deep_ll.runtime.rejoin_memory import Own, Progress
from deep_ll.stats import stats_of
from deep_ll.trace import Trace

if TYPE_CHECKING:
    from deep_ll._native import Answer, Batch, CallOptions
    from deep_ll.checks import Tokens
    from deep_ll.env import Settings
    from deep_ll.kinds import Sizes
    from deep_ll.open import Options
    from deep_ll.order import Sent
    from deep_ll.rounds import Hook
    from deep_ll.runtime.heap import Heap
    from deep_ll.runtime.store_group import StoreGroup
    from deep_ll.stats import Stats

_NS = 1_000_000_000
_CACHE_SHARE = 8  # rows beyond this part of the cache are stored past it (docs/performance.md)
_WORTH_WAKING = 256 << 10  # bytes of rows from which a rank's other threads help


@dataclass
class _Slot:
    """This rank's own memory of the rounds that take turns."""

    ledger: torch.Tensor
    choices: torch.Tensor
    address: int = 0  # of the ledger
    num_bytes: int = 0

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
    choices: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    waits: torch.Tensor | None


class Session(Order):
    """One rank's end of a buffer."""

    def __init__(
        self,
        heap: Heap,
        settings: Settings,
        expected: int | None,
        options: Options,
    ) -> None:
        cores = machine.num_cores()
        threads = (
            options.num_threads or settings.num_threads or max(1, cores // heap.num_local_ranks)
        )
        self.rank, self.heap = heap.rank, heap
        self.window = _native.Window.carve(heap.num_bytes, heap.num_ranks)
        super().__init__(self.window, heap.bases[heap.rank])
        self.kinds = Kinds(heap, self.window, expected, options.row_major_scales)
        self.exchange = _native.Exchange(
            bases=heap.bases,
            rank=heap.rank,
            heap_bytes=heap.num_bytes,
            num_threads=threads,
            crowded=heap.num_local_ranks * threads > cores,
            level=machine.cpu_level(settings.cpu_level),
        )
        if heap.link is not None:
            self.exchange.use_link(heap.link, [path.kind == LINK for path in heap.paths])
        self.members: Members | None = None
        if options.enable_shrink:
            mask = torch.zeros(mask_bytes(heap.num_ranks), dtype=torch.uint8)
            self.members = Members(heap.num_ranks, heap.rank, mask, self._take_back)
            self.exchange.use_mask(self.members.address)
        if settings.fault is not None:
            _native.set_fault(*settings.fault)
        self._place = Place(0, tuple(range(heap.num_ranks)))
        self._write_trace: weakref.finalize[..., Any] | None = None
        self._first = (0, 0)  # where dispatches and combines of this rank began
        self._outputs: dict[tuple[Sizes, int], torch.Tensor] = {}
        self.device, self.timeout_s = heap.device, options.timeout_s
        self._slots = [_Slot(_empty(torch.uint8), _empty(torch.int32)) for _ in range(NUM_SLOTS)]
        self._columns = not options.row_major_scales
        self._options = {  # of calls that do not choose their own deadline
            how: self._call_options(When(NOW, options.timeout_s), *how)
            for how in itertools.product((False, True), repeat=2)
        }
        self._streaming = settings.streaming
        self._cached_bytes = machine.cache_bytes() // _CACHE_SHARE // heap.num_local_ranks

    @property
    def dispatched(self) -> int:
        """The last dispatch that was started."""
        return self.exchange.dispatched

    @property
    def combined(self) -> int:
        """The last combine that was sent."""
        return self.exchange.combined

    def dispatch(self, kind: Kind, tokens: Tokens, stats: torch.Tensor | None, when: When) -> Sent:
        """Sends this rank's tokens, and receives as `when` says."""
        if self._asynchronous:
            self.finish_asynchronous()
        epoch = self.next_dispatch()
        index = epoch % NUM_SLOTS
        slot = self._slots[index]
        if slot.num_bytes < kind.ledger_bytes:
            slot.grow(kind.ledger_bytes)
        counts, sizes = kind.counts[index], kind.sizes
        num_tokens = tokens.num_tokens
        batch = _native.Batch(
            tokens.x, num_tokens, *counts.addresses, index, tokens.indices, tokens.wide
        )
        how = self._how(num_tokens * sizes.num_topk * kind.row_bytes, when)
        if not self.exchange.dispatch_send(kind.shape, how, slot.address, batch):
            self._refuse_dispatch(kind, epoch, how)
        this = Round(self._identity, epoch, kind, slot.ledger, num_tokens)
        this.pending = pending = Pending(
            "dispatch", epoch, lambda: self._receive(this, how, batch, (stats, when.waits))
        )
        results = self.keep_dispatch(this)
        if when.mode == NOW:
            pending.finish()
        return *results, *self._ending(pending, when.mode)

    def _refuse_dispatch(self, kind: Kind, epoch: int, how: CallOptions) -> None:
        bad = self.exchange.bad_choice()
        if bad is not None:
            checks.choices(bad, kind.shape, epoch)
        self._turns[epoch % NUM_SLOTS].round = None
        self._fail(f"dispatch #{epoch}", how)

    def _ending(self, pending: Pending, mode: int) -> tuple[EventOverlap, Hook | None]:
        """Hands out what will receive."""
        if mode == HOOK:
            return EventOverlap(), pending.as_hook()
        if mode == ASYNC:
            self.finish_later(pending)
            return EventOverlap(pending), None
        return EventOverlap(), None

    def _receive(
        self,
        this: Round,
        how: CallOptions,
        batch: Batch,
        counters: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> None:
        self.check_usable()
        stats, _ = counters
        received = 0 if stats is None else stats.data_ptr()
        ledger = this.ledger.data_ptr()
        shape = this.kind.shape
        if not self.exchange.dispatch_receive(shape, how, ledger, batch, received):
            self._fail(f"dispatch #{this.epoch}", how)

    def meet(self, kind: Kind, timeout_s: float) -> None:
        """Waits until all ranks that are not left out have come here."""
        how = self._how(0, When(NOW, timeout_s))
        if not self.exchange.meet(kind.shape, how):
            self._fail("clean_low_latency_buffer", how)

    def take_combine_buffer(self, this: Round, timeout_s: float) -> torch.Tensor:
        """The memory of the next combine, once no peer reads its earlier content any more."""
        epoch = self.next_combine()
        slot = epoch % NUM_SLOTS
        if self.heap.has_links:
            self._taken = epoch, this
            return self._outputs_of(this.kind, slot)
        how = self._how(0, When(NOW, timeout_s))
        if not self.exchange.await_credit(this.kind.shape, how, slot):
            self._fail(f"get_next_low_latency_combine_buffer (for combine #{epoch})", how)
        self._taken = epoch, this
        return this.kind.combine[slot]

    def _outputs_of(self, kind: Kind, slot: int) -> torch.Tensor:
        """Where experts write if not all peers can read this rank's heap: outputs are pushed from
        there by all ranks. Only touched pages cost memory.
        """
        outputs = self._outputs.get((kind.sizes, slot))
        if outputs is None:
            outputs = torch.empty_like(kind.combine[slot])
            self._outputs[kind.sizes, slot] = outputs
        return outputs

    def combine(
        self,
        this: Round,
        x: torch.Tensor | None,
        choice: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        when: When,
        logfmt: bool,
    ) -> tuple[EventOverlap, Hook | None]:
        """Sends the outputs of this rank's experts (None: they are read in place) and adds up into
        `out`, as `when` says. `choice`: topk_idx and topk_weights. `logfmt`: rows travel in
        it."""
        topk_idx, weights = choice
        epoch = self.next_combine()
        self.check_source(this, epoch, x)
        if x is None and self.heap.has_links:
            x = self._outputs_of(this.kind, epoch % NUM_SLOTS)
        choices = self._copy_choices(this, self._slots[epoch % NUM_SLOTS], topk_idx)
        self.finish_asynchronous()
        sizes = this.kind.sizes
        how = self._how(this.num_tokens * sizes.num_topk * 2 * sizes.hidden, when)
        slots = (this.epoch % NUM_SLOTS, epoch % NUM_SLOTS)
        answer = _native.Answer(*slots, x is None, logfmt, this.layout_range)
        gathering = _Gathering(this, epoch, how, answer, choices, weights, out, when.waits)
        address = 0 if x is None else x.data_ptr()
        ledger = this.ledger.data_ptr()
        if not self.exchange.combine_send(this.kind.shape, how, ledger, answer, address):
            self._fail(f"combine #{epoch}", how)
        earlier = self._turns[(epoch - 1) % NUM_SLOTS].combine
        pending = Pending("combine", epoch, lambda: self._gather(gathering), earlier)
        self.keep_combine(epoch, this, pending)
        if when.mode == NOW:
            pending.finish()
        return self._ending(pending, when.mode)

    def stats(self) -> Stats:
        """What this rank has done and whom it has waited for."""
        sent = (self.dispatched, self.combined)
        names = ("dispatch", "combine")
        calls = {
            name: now - first & EPOCHS
            for name, now, first in zip(names, sent, self._first, strict=True)
        }
        return stats_of(self.exchange.watch, self.rank, calls, self.heap.paths)

    def show(self, number: int, folder: str | None) -> None:
        """SIGUSR1 tells of this rank from now on, and of which buffer; a trace of it is written
        into the folder.
        """
        watch = self.exchange.watch
        if folder is not None:
            trace = Trace(watch, folder, self.rank, self.heap.num_ranks, number)
            self._write_trace = weakref.finalize(self, trace.write)
        watch.show(number)

    def where(self) -> str:
        """What this rank is at."""
        return self.exchange.watch.describe()

    def close(self) -> None:
        """Gives the memory back; may be called again."""
        self.exchange.watch.hide()
        if self._write_trace is not None:
            self._write_trace()
        self.heap.close()

    def comm_stream(self) -> torch.cpu.Stream:
        """torch's stand-in for a stream: on CPUs there are none."""
        return torch.cpu.current_stream(self.device)

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
            self._fail(f"combine #{g.epoch}", g.how)

    def _how(self, num_bytes: int, when: When) -> CallOptions:
        """How to move rows of this size: past the caches if the ranks of this host together
        outgrow them, and by this rank's first thread alone if waking others takes longer."""
        streaming = num_bytes > self._cached_bytes if self._streaming is None else self._streaming
        how = streaming, num_bytes < _WORTH_WAKING
        if when.timeout_s == self.timeout_s and when.waits is None:
            return self._options[how]
        return self._call_options(when, *how)

    def _call_options(self, when: When, streaming: bool, small: bool) -> CallOptions:
        timeout_ns = round(when.timeout_s * _NS)
        return _native.CallOptions(timeout_ns, streaming, small, self._columns, when.costs)

    def begin_at(self, progress: Progress, place: Place) -> None:
        """As if this rank had made the calls that others have made."""
        assert self.members is not None
        self.exchange.resume(list(progress))
        self._place = place
        self._first = progress.dispatched, progress.combined
        for rank in range(self.heap.num_ranks):
            if rank not in place.living:
                self.members.update(rank, True)

    def rejoin(self, group: StoreGroup, rank: int, timeout_s: float) -> None:
        """Takes a rank that began anew into the group. Collective among the living."""
        members, heap, pending = self.members, self.heap, self.unfinished()
        if pending is not None:
            raise OrderError(f"rejoin({rank}): {pending.name} is not finished: call its hook first")
        if members is None or heap.fd is None:
            raise OrderError(
                f"rejoin({rank}) needs a buffer with enable_shrink=True, between processes: else "
                "destroy it and make a new one"
            )
        if rank not in members.masked:
            raise OrderError(
                f"rejoin({rank}): this rank is not masked, masked are {members.masked}"
            )
        living = tuple(r for r in range(heap.num_ranks) if r not in members.masked)
        place = Place(self._place.number, living)
        own = Own(
            heap.fd, heap.maps[self.rank], self.window, heap.num_ranks, heap.wish, heap.opened
        )
        progress = Progress(*self.exchange.progress)
        joined, self._place = welcome(group, own, place, progress, rank, timeout_s)
        heap.replace(*joined)
        self.exchange.replace(rank, joined.memory.data_ptr(), joined.path.kind == LINK)
        members.update(rank, False)
        self.forget_rounds()  # the newcomer has no part in them

    def _take_back(self, rank: int) -> None:
        if self.heap.link is not None:
            self.heap.link.take_back(rank)

    def _fail(self, name: str, how: CallOptions) -> None:
        gone = self.heap.gone()
        error = failures.why(self.exchange, self.rank, name, how.timeout_ns / _NS, gone=gone)
        if self.exchange.disagreement() is None:
            self.broken = str(error)
        raise error


def _empty(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype)
