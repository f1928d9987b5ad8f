"""What the fake driver can be asked and told, by a process that has loaded it."""

import ctypes
from collections.abc import Callable, Iterator
from typing import NamedTuple

CAPTURING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
INVALIDATED = 2
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE

# fn(name, params, num_param_bytes, grid, block, shared_bytes, stream) -> CUresult
LaunchCallback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint * 3),
    ctypes.POINTER(ctypes.c_uint * 3),
    ctypes.c_uint,
    ctypes.c_void_p,
)


class _Record(ctypes.Structure):
    """`Launch` in launch.c."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("num_attributes", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("param_bytes", ctypes.c_uint64),
        ("capture", ctypes.c_uint64),
        ("attributes", ctypes.c_uint * 4),
        ("params", ctypes.c_ubyte * 4096),
    )


class Launch(NamedTuple):
    """One launch, as the driver saw it."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    device: int
    attributes: tuple[int, ...]
    params: bytes
    capture: int = 0


class Fake:
    """The fake driver of this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        if not hasattr(self._library, "fake_launch"):
            raise RuntimeError("libcuda.so.1 is a real driver: start this in a FakeProcess")
        self._library.fake_launch.restype = ctypes.POINTER(_Record)
        self._callback: object = None

    def fail_next(self, function: str, code: int) -> None:
        """The next call of this C function (with its _v2) returns `code` and does nothing."""
        self._library.fake_fail_next(function.encode(), code)

    def set_params(self, kernel: str, num_bytes: int, num_params: int = 1) -> None:
        """What cuKernelGetParamInfo says of a kernel."""
        self._library.fake_set_params(kernel.encode(), num_params, ctypes.c_size_t(num_bytes))

    def set_capturing(self, stream: int, status: int) -> None:
        """What cuStreamIsCapturing says of a stream."""
        self._library.fake_set_capturing(ctypes.c_void_p(stream), status)

    def begin_capture(self, stream: int, capture: int) -> None:
        """From now on launches on this stream, and on those that wait for it, are only recorded."""
        self._library.fake_join_capture(ctypes.c_void_p(stream), capture)

    def end_capture(self, capture: int) -> None:
        self._library.fake_end_capture(capture)

    def captured(self, capture: int, start: int = 0) -> Iterator[int]:
        """Numbers of the launches in a capture, from number `start` on; for `replay`."""
        while (start := self._library.fake_next_captured(capture, start)) >= 0:
            yield start
            start += 1

    def replay(self, number: int) -> None:
        """Runs a recorded launch, with the bytes it was given."""
        code = self._library.fake_replay(number)
        assert code == 0, code

    def on_launch(self, callback: "Callable[..., int] | int | None") -> None:
        """What runs a launched kernel: a function for `LaunchCallback`, or the address of a C
        function of its type, which runs without the interpreter's lock."""
        if callback is None or isinstance(callback, int):
            native = ctypes.cast(callback or 0, LaunchCallback)
        else:
            native = LaunchCallback(callback)
        self._library.fake_set_launch_callback(native)
        self._callback = native

    def launches(self) -> list[Launch]:
        """All launches since `forget_launches()`; the last 4096 at most."""
        count = self._library.fake_num_launches()
        return [self._launch(index) for index in range(max(0, count - 4096), count)]

    def forget_launches(self) -> None:
        self._library.fake_forget_launches()

    def count(self, what: str, *kernel: str) -> int:
        """`libraries`, `host_allocations`; of a kernel `loads`, `attribute_calls`."""
        function = getattr(self._library, f"fake_num_{what}")
        return int(function(*(name.encode() for name in kernel)))

    def shared_bytes(self, kernel: str) -> int:
        """The dynamic shared memory that was allowed to a kernel."""
        return int(self._library.fake_shared_bytes(kernel.encode()))

    def _launch(self, index: int) -> Launch:
        record = self._library.fake_launch(index).contents
        return Launch(
            record.name.decode(),
            tuple(record.grid),
            tuple(record.block),
            record.shared,
            record.stream,
            record.context - 1,
            tuple(record.attributes[: record.num_attributes]),
            ctypes.string_at(record.params, record.param_bytes),
            record.capture,
        )
