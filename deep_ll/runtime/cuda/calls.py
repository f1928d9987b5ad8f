"""The seam to cuda-python: calls of the CUDA driver whose failures are errors that say enough."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING

from deep_ll.errors import DriverError, GpuUnavailable
from deep_ll.runtime.cuda.untyped import Untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

_STICKY = "an earlier kernel on this device failed, and this process cannot use it any more: "
_STICKY += "run with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to see which"
# What to do about errors whose own text does not say it, by CUresult.
_CURES = {
    2: "free device memory, or make the buffer smaller",
    209: "the kernels in this installation hold no code for this GPU: build deep_ll on this "
    "machine with DEEP_LL_CUDA=require",
    218: "the driver cannot compile the kernels' PTX: update it, or build deep_ll on this machine "
    "with DEEP_LL_CUDA=require",
    500: "the kernels and this version of deep_ll are of different builds: reinstall deep_ll",
    700: _STICKY,
    701: "the kernel needs fewer threads or less shared memory a block",
    710: _STICKY,
    716: _STICKY,
    719: _STICKY,
    720: "the grid does not fit on the device at once: use fewer blocks",
    906: "a CUDA graph is being captured: work on a stream of your own, not on the default stream",
}
CAPTURE_IMPLICIT = 906


@functools.cache
def bindings() -> Untyped:
    """cuda.bindings.driver, with the driver initialised.

    Raises:
        GpuUnavailable: the package or the driver is not there.
    """
    try:
        driver: Untyped = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise GpuUnavailable(
            f"cuda-python cannot be imported ({error}): pip install 'deep_ll[cuda13]'"
        ) from error
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:
        # What cuda.pathfinder raises where libcuda.so.1 is not found.
        raise GpuUnavailable(
            f"the CUDA driver cannot be loaded ({error}): install the NVIDIA driver, in a "
            "container run it with --gpus"
        ) from error
    if code:
        raise GpuUnavailable(
            f"the CUDA driver does not start ({code.name}): compare with what nvidia-smi says"
        )
    return driver


def call(function: str, *args: object, doing: str) -> Untyped:
    """Calls a function of the driver and returns what it gives besides its status.

    Args:
        function: its name, "cuLibraryGetKernel".
        args: passed on.
        doing: what failed if it fails, for the message: "loading kernel dispatch".

    Raises:
        DriverError: with the driver's name and text for it.
    """
    code, *rest = getattr(bindings(), function)(*args)
    if code:
        raise failure(code, f"{doing} ({function})")
    return rest[0] if len(rest) == 1 else tuple(rest)


def failure(code: Untyped, doing: str) -> DriverError:
    """The error of a call that returned `code`."""
    driver = bindings()
    number = int(code)
    texts = [_text(driver.cuGetErrorName(code)), _text(driver.cuGetErrorString(code))]
    cure = f"; {_CURES[number]}" if number in _CURES else ""
    return DriverError(f"{doing} failed: {texts[0]} ({number}), {texts[1]}{cure}", number)


def _text(answer: tuple[Untyped, bytes | None]) -> str:
    return (answer[1] or b"unknown").decode()


def primary_context(device_index: int) -> Untyped:
    """The context that torch uses of this device. It is kept for the life of the process."""
    doing = f"opening GPU {device_index}"
    device = call("cuDeviceGet", device_index, doing=doing)
    return call("cuDevicePrimaryCtxRetain", device, doing=doing)


@contextlib.contextmanager
def current(context: Untyped) -> Iterator[None]:
    """Makes a context this thread's for a while. A new thread has none."""
    call("cuCtxPushCurrent", context, doing="entering a context")
    try:
        yield
    finally:
        call("cuCtxPopCurrent", doing="leaving a context")
