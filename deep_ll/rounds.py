"""Which operations are under way, and in which order they may be finished."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deep_ll.errors import OrderError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import torch

    from deep_ll.handle import Lease
    from deep_ll.kinds import Kind

    Hook: TypeAlias = Callable[[], None]

NUM_SLOTS = 2  # rounds whose results can be held at once


@dataclass(eq=False, slots=True)
class Round:
    """One dispatch, from its call until its slot of the heap is needed again."""

    owner: object  # identifies the session
    epoch: int
    kind: Kind
    ledger: torch.Tensor
    num_tokens: int
    pending: Pending | None = None
    combined: bool = False
    combines: tuple[Pending, ...] = ()
    _lease: weakref.ref[Lease] | None = None

    def watch(self, lease: Lease) -> None:
        """Remembers whose results these are."""
        self._lease = weakref.ref(lease)

    @property
    def layout_range(self) -> int:
        """The address of what place each source's rows have here."""
        _, address = self.kind.counts[self.epoch % NUM_SLOTS].addresses
        return address

    @property
    def is_held(self) -> bool:
        """Whether somebody still has the handle and has not combined with it."""
        return not self.combined and self._lease is not None and self._lease() is not None

    def check_over(self, next_epoch: int) -> None:
        """Raises unless this round's slot may be given to dispatch `next_epoch`."""
        waiting = [p for p in (self.pending, *self.combines) if p is not None and not p.done]
        if waiting:
            raise OrderError(
                f"dispatch #{next_epoch} needs the place of dispatch #{self.epoch}, but "
                f"{waiting[0].name} is not finished: "
                f"call its hook first (at most {NUM_SLOTS} rounds can be under way)"
            )
        if self.is_held:
            raise OrderError(
                f"dispatch #{next_epoch} would overwrite the results of dispatch #{self.epoch}, "
                f"whose handle is still held and "
                f"was not combined: combine it, or drop the handle (results of {NUM_SLOTS} "
                f"dispatches can be held)"
            )


class Pending:
    """The receiving half of an operation; runs once."""

    __slots__ = ("_earlier", "_epoch", "_kind", "_receive", "done")

    def __init__(
        self, kind: str, epoch: int, receive: Callable[[], None], earlier: Pending | None = None
    ) -> None:
        self.done = False
        self._kind, self._epoch = kind, epoch
        self._receive: Callable[[], None] | None = receive
        self._earlier = earlier

    @property
    def name(self) -> str:
        """The operation, for people."""
        return f"{self._kind} #{self._epoch}"

    def finish(self) -> None:
        """Receives, unless that was done; operations of the same kind that were sent before come
        first.
        """
        if self.done or self._receive is None:
            return
        if self._earlier is not None:
            self._earlier.finish()
        receive, self._receive, self._earlier = self._receive, None, None
        self.done = True  # also if it fails: it is over
        receive()

    def as_hook(self) -> Hook:
        """A function for the user to call, once."""
        called = False

        def hook() -> None:
            nonlocal called
            if called:
                raise OrderError(f"the hook of {self.name} was called twice: call each hook once")
            try:
                self.finish()
            finally:
                called = self.done  # not if an earlier operation's failure came first

        return hook
