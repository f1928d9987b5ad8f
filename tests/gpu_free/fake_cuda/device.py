"""A GPU made of CPU memory."""

from collections.abc import Callable

import torch

from deep_ll.runtime.cuda.device import Device


class FakeDevice(Device):
    """Has tensors on the CPU, a stream by number, and remembers what it was asked to wait for."""

    def __init__(self, index: int = 0, stream: int = 0x51, log: Callable[[str], None] = print):
        self.index = index
        self.torch_device = torch.device("cpu")
        self.stream = stream
        self._log = log

    @property
    def name(self) -> str:
        return f"Fake GPU {self.index}"

    @property
    def capability(self) -> tuple[int, int]:
        return 9, 0

    @property
    def num_sms(self) -> int:
        return 132

    @property
    def max_shared_bytes(self) -> int:
        return 232448

    def current_stream(self) -> int:
        return self.stream

    def make_current(self) -> None:
        self._log("make_current")

    def synchronize(self) -> None:
        self._log("synchronize")
