"""What a stream is doing, as far as a launch has to know."""

from __future__ import annotations

from deep_ll.errors import DriverError
from deep_ll.runtime.cuda import calls
from deep_ll.runtime.cuda.untyped import Untyped


def is_capturing(stream: int) -> bool:
    """Whether launches on this stream go into a CUDA graph instead of running.

    Args:
        stream: as torch gives it.

    Raises:
        DriverError: the capture was broken by an earlier call, or another stream is captured and
            this is the default stream, which must not be used then.
    """
    doing = f"asking whether stream {stream:#x} is captured"
    driver = calls.bindings()
    status = calls.call("cuStreamIsCapturing", driver.CUstream(stream), doing=doing)
    kinds = driver.CUstreamCaptureStatus
    if status == kinds.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
        raise DriverError(
            f"the capture on stream {stream:#x} is broken: an earlier call in it waited for the "
            "device or used another stream; end it and capture again",
            int(driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        )
    return bool(status == kinds.CU_STREAM_CAPTURE_STATUS_ACTIVE)


def mark(stream: int) -> Untyped:
    """An event for what was put on a stream so far. Somebody has to `forget` it."""
    driver = calls.bindings()
    doing = f"marking stream {stream:#x}"
    flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    event = calls.call("cuEventCreate", flags, doing=doing)
    calls.call("cuEventRecord", event, driver.CUstream(stream), doing=doing)
    return event


def wait_for_mark(stream: int, event: Untyped) -> None:
    """Lets what is put on `stream` from now on wait for an event."""
    doing = f"letting stream {stream:#x} wait for another one"
    calls.call("cuStreamWaitEvent", calls.bindings().CUstream(stream), event, 0, doing=doing)


def forget(event: Untyped) -> None:
    """Gives an event back once it was reached."""
    calls.call("cuEventDestroy", event, doing="forgetting a mark")


def wait_for(stream: int, other: int) -> None:
    """Lets what is put on `stream` from now on wait for all that was put on `other` before."""
    event = mark(other)
    wait_for_mark(stream, event)
    forget(event)
