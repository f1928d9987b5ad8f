"""What a process with the fake driver needs to run GPU sessions: call `enter()` first."""

import ctypes
import functools
import threading

import torch
from fake_cuda.device import FakeDevice
from fake_cuda.driver import Fake
from twin import build

from deep_ll import _native, gpu_session, kernels

SIDE = 0xC00


class TwinDevice(FakeDevice):
    """CPU tensors; each thread has a stream of its own."""

    @classmethod
    def of(cls, device: torch.device) -> "TwinDevice":
        return cls(device.index or 0, stream=own_stream(), log=lambda _text: None)

    def side_stream(self) -> "TwinDevice.Side":
        return self.Side(self.stream + SIDE)

    class Side:
        def __init__(self, number: int) -> None:
            self.number = number

        def keep(self, tensors: tuple[torch.Tensor, ...]) -> None:
            assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)


_streams = threading.local()
_numbers = iter(range(0x10, 0xC00))


def own_stream() -> int:
    """The number of this thread's stream."""
    if not hasattr(_streams, "number"):
        _streams.number = next(_numbers)
    return _streams.number


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
    gpu_session.preflight.require = lambda *_args, **_kwargs: None
    gpu_session.Device = TwinDevice
    return fake
