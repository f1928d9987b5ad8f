"""What a process with the fake driver needs to run GPU sessions: call `enter()` first."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator

import torch
from fake_cuda.device import FakeDevice
from fake_cuda.driver import Fake

from deep_ll import _native, gpu_open, kernels
from twin import build

SIDE, OTHER = 0x1000, 0x2000  # beside a thread's own stream


class TwinDevice(FakeDevice):
    """CPU tensors; each thread has a stream of its own."""

    num_allocations = 0

    @classmethod
    def of(cls, device: torch.device) -> "TwinDevice":
        return cls(device.index, stream=own_stream(), log=lambda _text: None)

    def current_stream(self) -> int:
        return getattr(_streams, "current", own_stream())

    def side_stream(self) -> "TwinDevice.Side":
        return self.Side(self.stream + SIDE)

    def zeros(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        TwinDevice.num_allocations += 1
        return super().zeros(count, dtype)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        TwinDevice.num_allocations += 1
        return super().empty(count, dtype)

    class Side:
        """Remembers the addresses of what it was told to keep."""

        def __init__(self, number: int) -> None:
            self.number, self.stream, self.kept = number, number, []

        def keep(self, tensors: tuple[torch.Tensor, ...]) -> None:
            self.kept += [tensor.data_ptr() for tensor in tensors]


_streams = threading.local()
_numbers = iter(range(0x10, SIDE))


def own_stream() -> int:
    """The number of this thread's stream."""
    if not hasattr(_streams, "number"):
        _streams.number = next(_numbers)
    return _streams.number


@contextlib.contextmanager
def on_stream(number: int) -> Iterator[None]:
    """Makes a stream this thread's current one."""
    _streams.current = number
    try:
        yield
    finally:
        del _streams.current


@functools.cache
def enter() -> Fake:
    """Replaces the GPU in this process."""
    fake = Fake()
    sizes = {"dispatch": _native.Launches.DISPATCH_BYTES}
    for tier in kernels.description()["tiers"].values():
        for name, facts in tier["kernels"].items():
            fake.set_params(facts["name"], sizes.get(name, _native.Launches.COMBINE_BYTES))
    library = ctypes.CDLL(str(build.library()))
    fake.on_launch(ctypes.cast(library.twin_launch, ctypes.c_void_p).value)
    gpu_open.preflight.require = lambda *_args, **_kwargs: None
    gpu_open.Device = TwinDevice
    return fake
