"""Streams of a GPU session: where its launches go, and what they wait for.

The kernels of a buffer must not overlap, and their order must be that of the calls. On one stream
it is by itself; where a call comes from another stream than the last one did, its launch waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from deep_ll.errors import OrderError
from deep_ll.runtime.cuda import calls
from deep_ll.runtime.cuda.streams import forget, is_capturing, mark, wait_for, wait_for_mark

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from deep_ll.runtime.cuda.device import Device

_DEFAULT = 0


def is_captured(stream: int) -> bool:
    """Whether launches on this stream go into a CUDA graph. The default stream never is, and must
    not even be asked about while another one is."""
    return stream != _DEFAULT and is_capturing(stream)


class Mark:
    """What was put on a stream so far, for another one to wait for."""

    def __init__(self, streams: Streams, stream: int) -> None:
        self._streams, self._captured = streams, is_captured(stream)
        with streams.context():
            self._event = mark(stream)

    def __del__(self) -> None:
        # At the end of the process the driver may be gone.
        with contextlib.suppress(Exception):
            forget(self._event)

    def finish(self) -> None:
        """Lets the current stream wait for it.

        Raises:
            OrderError: one of the two was captured into a CUDA graph, the other not.
        """
        stream = self._streams.caller()
        if is_captured(stream) != self._captured:
            when = (
                "captured: wait for it before the capture ends, on a captured stream"
                if self._captured
                else "not captured: wait for it before the capture begins"
            )
            raise OrderError(f"this event is of an operation that was {when}")
        with self._streams.context():
            wait_for_mark(stream, self._event)


class Streams:
    """The caller's streams and one of the session's own.

    Args:
        device: where.
        shared: other ranks launch from threads of this process: they share the default stream.
    """

    def __init__(self, device: Device, shared: bool) -> None:
        self._device, self._shared = device, shared
        self._side = device.side_stream()
        self._context = calls.primary_context(device.index)
        self._last: int | None = None

    @property
    def side(self) -> torch.cuda.Stream:
        """The session's own, on which asynchronous operations run."""
        return self._side.stream

    def caller(self) -> int:
        """Where the caller puts its work now."""
        return self._device.current_stream()

    def current(self) -> int:
        """The same, for a launch."""
        stream = self._device.current_stream()
        if stream == _DEFAULT and self._shared:
            raise OrderError(
                "ranks that share a GPU wait for each other's kernels, and the default stream runs "
                "one after the other: give each rank a stream of its own, "
                "with torch.cuda.stream(torch.cuda.Stream())"
            )
        return stream

    def on(self, stream: int, launch: Callable[[int], None], after: int | None = None) -> None:
        """Launches on a stream, after what was put on the one of the last launch, and on `after`.

        A graph that is captured begins anew: whoever replays it sees to what came before. So does
        whoever calls after a replay, which this process does not notice.
        """
        last, self._last = self._last, stream
        if after not in (None, stream):
            self._wait(stream, after)
        if last not in (None, stream, after) and is_captured(last) == is_captured(stream):
            self._wait(stream, last)
        launch(stream)

    def aside(self, launch: Callable[[int], None], used: tuple[torch.Tensor, ...]) -> Mark:
        """Launches on the own stream, after what is on the current one.

        Args:
            launch: puts kernels on a stream.
            used: what they use. The memory is not given away before they are through.

        Returns:
            Their end.
        """
        side = self._side.number
        self.on(side, launch, after=self.current())
        self._side.keep(used)
        return Mark(self, side)

    def rejoin(self, stream: int) -> None:
        """Lets the current stream wait for another one."""
        current = self.caller()
        if current != stream:
            self._wait(current, stream)

    def context(self) -> AbstractContextManager[None]:
        """Makes the device's context current, if it is not: events belong to it, and a thread may
        have none or another device's."""
        if calls.bindings().cuCtxGetCurrent()[1] == self._context:
            return contextlib.nullcontext()
        return calls.current(self._context)

    def _wait(self, stream: int, other: int) -> None:
        with self.context():
            wait_for(stream, other)
