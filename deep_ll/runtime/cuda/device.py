"""The seam to torch.cuda: all that is asked of it, so that tests can stand in for a GPU."""

from __future__ import annotations

import torch

from deep_ll.errors import ArgumentError
from deep_ll.runtime.cuda import calls


class SideStream:
    """A stream of high priority beside those of callers.

    Attributes:
        stream: as torch knows it.
        number: as the driver knows it.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.number = int(self.stream.cuda_stream)

    def keep(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """What was put on it uses these: their memory must not be given away before."""
        for tensor in tensors:
            tensor.record_stream(self.stream)


class Device:
    """One GPU.

    Attributes:
        index: as torch counts, after CUDA_VISIBLE_DEVICES.
        torch_device: what tensors on it have.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.torch_device = torch.device("cuda", index)

    @classmethod
    def of(cls, device: torch.device | None = None) -> Device:
        """The GPU of this name; without a number, and for None, torch's current one.

        Raises:
            ArgumentError: it is not a GPU.
        """
        if device is not None and device.type != "cuda":
            raise ArgumentError(f"device {device} is not a GPU: pass one like cuda:0")
        index = None if device is None else device.index
        return cls(torch.cuda.current_device() if index is None else index)

    @property
    def name(self) -> str:
        """What it is sold as."""
        return str(torch.cuda.get_device_properties(self.index).name)

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""
        major, minor = torch.cuda.get_device_capability(self.index)
        return major, minor

    @property
    def num_sms(self) -> int:
        """How many multiprocessors it has."""
        return int(torch.cuda.get_device_properties(self.index).multi_processor_count)

    @property
    def max_shared_bytes(self) -> int:
        """The most shared memory that a block can ask for."""
        attributes = calls.bindings().CUdevice_attribute
        which = attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        doing = f"asking GPU {self.index} for its shared memory"
        device = calls.call("cuDeviceGet", self.index, doing=doing)
        return int(calls.call("cuDeviceGetAttribute", which, device, doing=doing))

    def zeros(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeroed memory, on the current stream."""
        return torch.zeros(count, dtype=dtype, device=self.torch_device)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory with anything in it."""
        return torch.empty(count, dtype=dtype, device=self.torch_device)

    def current_stream(self) -> int:
        """The stream that torch would use on it now."""
        # Ten times cheaper than torch.cuda.current_stream(), and asked at every launch.
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def side_stream(self) -> SideStream:
        """A new stream beside those of the caller."""
        return SideStream(self.torch_device)

    def make_current(self) -> None:
        """Lets what this thread does with CUDA go to this device."""
        torch.cuda.set_device(self.index)

    def synchronize(self) -> None:
        """Waits for all that was put on it. Not while a CUDA graph is captured."""
        torch.cuda.synchronize(self.torch_device)
