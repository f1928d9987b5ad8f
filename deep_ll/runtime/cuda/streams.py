"""What a stream is doing, as far as a launch has to know."""

from __future__ import annotations

from deep_ll.errors import DriverError
from deep_ll.runtime.cuda import calls


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


def wait_for(stream: int, other: int) -> None:
    """Lets what is put on `stream` from now on wait for all that was put on `other` before."""
    driver = calls.bindings()
    doing = f"letting stream {stream:#x} wait for stream {other:#x}"
    flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    event = calls.call("cuEventCreate", flags, doing=doing)
    calls.call("cuEventRecord", event, driver.CUstream(other), doing=doing)
    calls.call("cuStreamWaitEvent", driver.CUstream(stream), event, 0, doing=doing)
    calls.call("cuEventDestroy", event, doing=doing)  # when it was reached
