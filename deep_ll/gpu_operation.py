"""One operation on a GPU, from its call to its end: now, behind an event, or in a hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deep_ll.errors import OrderError
from deep_ll.event import EventOverlap
from deep_ll.gpu_streams import is_captured
from deep_ll.order import ASYNC, HOOK
from deep_ll.rounds import Pending

if TYPE_CHECKING:
    import torch

    from deep_ll.gpu_streams import Streams
    from deep_ll.rounds import Hook

SEND, RECEIVE = 1, 2
BOTH = SEND | RECEIVE


class Operation(NamedTuple):
    """What is to be launched.

    Attributes:
        name, epoch: "dispatch", 5.
        launch: puts these halves on this stream.
        used: tensors of the caller that its kernels use.
        used_later: those that the receiving half uses. The caller's stream, on which both run,
            keeps the others as any kernel's.
    """

    name: str
    epoch: int
    launch: Callable[[int, int], None]
    used: tuple[torch.Tensor, ...]
    used_later: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Later:
    """The receiving half of an operation with a hook. It runs on the stream of the sending half;
    if the hook is called on another one, that one waits for it."""

    operation: Operation
    streams: Streams
    check: Callable[[], None]
    stream: int
    captured: bool

    def __call__(self) -> None:
        self.check()
        name = f"{self.operation.name} #{self.operation.epoch}"
        if is_captured(self.streams.caller()) != self.captured:
            where = "into a CUDA graph" if self.captured else "outside of any CUDA graph"
            raise OrderError(
                f"{name} was sent {where} and its hook is called elsewhere: call it where the "
                "operation was sent, in the same capture"
            )
        launch = self.operation.launch
        self.streams.on(self.stream, lambda stream: launch(stream, RECEIVE))
        self.streams.rejoin(self.stream)


def _nothing() -> None:
    """What is left of an operation that was launched whole."""


def start(
    operation: Operation,
    streams: Streams,
    mode: int,
    check: Callable[[], None],
    earlier: Pending | None,
) -> tuple[Pending, tuple[EventOverlap, Hook | None]]:
    """Puts an operation on a stream.

    Args:
        operation: what.
        streams: of the session.
        mode: when it is received.
        check: raises if a hook cannot work any more.
        earlier: what a hook has to receive first.

    Returns:
        What is left of it, and the event and the hook for the caller.
    """
    which, launch = (operation.name, operation.epoch), operation.launch
    if mode == HOOK:
        stream = streams.current()
        streams.on(stream, lambda stream: launch(stream, SEND))
        later = _Later(operation._replace(used=()), streams, check, stream, is_captured(stream))
        pending = Pending(*which, later, earlier)
        return pending, (EventOverlap(), pending.as_hook())
    pending = Pending(*which, _nothing)
    pending.done = True
    if mode == ASYNC:
        end = streams.aside(lambda stream: launch(stream, BOTH), operation.used)
        return pending, (EventOverlap(end), None)
    streams.on(streams.current(), lambda stream: launch(stream, BOTH))
    return pending, (EventOverlap(), None)
