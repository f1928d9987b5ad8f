"""EventOverlap: the end of an operation, as DeepEP's users know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Finishable(Protocol):
    """The end of an operation: `finish()` returns when its results may be read, on a GPU by what
    is put on the current stream afterwards."""

    def finish(self) -> None:
        """Waits for it."""


class EventHandle:
    """What was put on the current stream so far, for other streams to wait for. Without a GPU
    nothing runs behind the caller's back, so there is nothing to wait for."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        if torch.cuda.is_available():
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def current_stream_wait(self) -> None:
        """Lets the current stream wait for it."""
        if self._event is not None:
            self._event.wait()

    def finish(self) -> None:
        """The same, as EventOverlap calls it."""
        self.current_stream_wait()


class EventOverlap:
    """The end of an operation that was started with `async_finish=True`.

    On a GPU the operation runs on a stream of the buffer's own, and `current_stream_wait()` lets
    the caller's current stream wait for it. On CPUs nothing runs behind the caller's back: the
    receiving half of the operation runs in `current_stream_wait()`, or at the start of the
    buffer's next operation, whichever comes first.
    Without `async_finish` the operation is complete, `event` is None and waiting does nothing.

    Args:
        event: the operation to wait for, or None.
        extra_tensors: tensors to keep alive as long as this object.
    """

    def __init__(
        self, event: Finishable | None = None, extra_tensors: Sequence[torch.Tensor] | None = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Returns when the operation's results may be read.

        Args:
            release_handle: also let go of the event and the extra tensors.
        """
        if self.event is not None:
            self.event.finish()
        if release_handle:
            self.event = self.extra_tensors = None

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.current_stream_wait()
