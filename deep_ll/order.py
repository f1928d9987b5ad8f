"""Which calls may come next: what a session of any machine knows of its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.handle import Handle
from deep_ll.rounds import NUM_SLOTS, Round

if TYPE_CHECKING:
    from typing import TypeAlias

    from deep_ll.event import EventOverlap
    from deep_ll.rounds import Hook, Pending

    # What a dispatch returns: x, recv_count, handle, event, hook.
    Received: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    Sent: TypeAlias = tuple[Received, torch.Tensor, Handle, EventOverlap, Hook | None]

EPOCHS = 0xFFFFFFFF
NOW, ASYNC, HOOK = 0, 1, 2
"""When an operation is received: in the call, behind an event, in a hook."""


class When(NamedTuple):
    """When an operation is received, and how long peers are waited for in seconds, 0: for ever.
    `waits` grows by how long each was."""

    mode: int
    timeout_s: float
    waits: torch.Tensor | None = None

    @property
    def costs(self) -> int:
        """The address of `waits`; 0: nobody asks."""
        return 0 if self.waits is None else self.waits.data_ptr()


@dataclass(slots=True)
class Turn:
    """The round and the combine that hold a slot of the heap."""

    round: Round | None = None
    combine: Pending | None = None


class Order:
    """Keeps the order of one rank's calls. Epochs count calls; kernels have their own."""

    def __init__(self, window: _native.Window, own_base: int, outputs: int | None = None) -> None:
        """`outputs`: where the buffers for experts' outputs lie, if not in the window's combine."""
        self.broken: str | None = None
        self._turns = tuple(Turn() for _ in range(NUM_SLOTS))
        self._identity = object()  # what rounds know of this session: they must not keep it alive
        self._asynchronous: list[Pending] = []
        self._taken: tuple[int, Round] | None = None  # whose combine buffer was taken
        combine = window.combine
        start = own_base + (combine.offset if outputs is None else outputs)
        self._combine_memory = range(start, start + combine.slots * combine.slot_bytes)

    @property
    def dispatched(self) -> int:
        """The last dispatch that was started."""
        raise NotImplementedError

    @property
    def combined(self) -> int:
        """The last combine that was sent."""
        raise NotImplementedError

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
        if self._turns[this.epoch % NUM_SLOTS].round is not this:
            raise OrderError(
                f"the handle of dispatch #{this.epoch} is too old: its results were overwritten, "
                f"the last dispatch is #{self.dispatched}; combine before the second "
                "next dispatch, and before get_local_buffer_tensor"
            )
        if this.pending is not None and not this.pending.done:
            self._finish_if_asynchronous(
                this.pending,
                f"dispatch #{this.epoch} was not received yet: call its hook before you use its "
                "handle",
            )
        return this

    def next_dispatch(self) -> int:
        """The epoch of the next dispatch, whose slot is free.

        Raises:
            OrderError: an earlier round still needs the slot.
        """
        epoch = self.dispatched + 1 & EPOCHS
        before = self._turns[epoch % NUM_SLOTS].round
        if before is not None:
            before.check_over(epoch)
        return epoch

    def next_combine(self) -> int:
        """The epoch of the next combine, whose slot is free.

        Raises:
            OrderError: an earlier combine still needs the slot.
        """
        epoch = self.combined + 1 & EPOCHS
        before = self._turns[epoch % NUM_SLOTS].combine
        if before is not None and not before.done:
            self._finish_if_asynchronous(
                before,
                f"combine #{epoch} needs the place of {before.name}, which is not finished: call "
                "its hook first",
            )
        return epoch

    def check_source(self, this: Round, epoch: int, x: torch.Tensor | None) -> None:
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

    def keep_dispatch(self, this: Round) -> tuple[Received, torch.Tensor, Handle]:
        """Remembers that a dispatch was sent; its x, recv_count and handle."""
        kind, slot = this.kind, this.epoch % NUM_SLOTS
        self._turns[slot].round = this
        counts, views, sizes = kind.counts[slot], kind.recv[slot], kind.sizes
        fields = (sizes.max_tokens, sizes.hidden, sizes.num_experts)
        handle = Handle.of(this, views.src_info, counts.layout_range, *fields)
        return views.x, counts.recv_count, handle

    def keep_combine(self, epoch: int, this: Round, pending: Pending) -> None:
        """Remembers that a combine was sent."""
        self._turns[epoch % NUM_SLOTS].combine = pending
        this.combined = True
        this.combines = (*(p for p in this.combines if not p.done), pending)

    def forget_rounds(self) -> None:
        """Gives up the results of all rounds: their memory goes to a caller who may write over it.

        Raises:
            OrderError: something is still to be received into it.
        """
        pending = self.unfinished()
        if pending is not None:
            raise OrderError(
                f"get_local_buffer_tensor gives away the memory that {pending.name} is "
                "received into, which is not finished: call its hook first"
            )
        self._taken = None
        for turn in self._turns:
            turn.round = None

    def unfinished(self) -> Pending | None:
        """An operation that only its hook will finish, if there is one."""
        self.finish_asynchronous()
        for turn in self._turns:
            dispatched = None if turn.round is None else turn.round.pending
            for pending in (dispatched, turn.combine):
                if pending is not None and not pending.done:
                    return pending
        return None

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

    def check(self) -> None:
        """Raises what went wrong in calls that have returned."""
        self.check_usable()

    def check_usable(self) -> None:
        """Raises if an earlier call left peers in an unknown state."""
        if self.broken is not None:
            raise OrderError(
                f"this buffer cannot be used any more, destroy it and make another: {self.broken}"
            )
