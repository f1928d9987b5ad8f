"""Host memory that kernels write: where they leave what went wrong."""

from __future__ import annotations

import ctypes

import torch

from deep_ll.runtime.cuda import calls

_PORTABLE = 0x01  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
_DEVICEMAP = 0x02  # CU_MEMHOSTALLOC_DEVICEMAP: kernels can address it


class HostMemory:
    """Pinned and mapped memory, all zero. It lives until `close()` or the end of the process: a
    kernel may still write to it when Python forgets it.

    Attributes:
        num_bytes: its size.
        address: where the host sees it.
        device_address: where kernels see it.
        tensor: uint8 [num_bytes] over it; not valid after `close()`.
    """

    def __init__(self, num_bytes: int, device_index: int) -> None:
        self._context = calls.primary_context(device_index)
        doing = f"allocating {num_bytes} bytes of pinned memory"
        with calls.current(self._context):
            flags = _PORTABLE | _DEVICEMAP
            self.address = int(calls.call("cuMemHostAlloc", num_bytes, flags, doing=doing))
            pointer = calls.call("cuMemHostGetDevicePointer", self.address, 0, doing=doing)
        self.device_address, self.num_bytes = int(pointer), num_bytes
        ctypes.memset(self.address, 0, num_bytes)
        view = (ctypes.c_uint8 * num_bytes).from_address(self.address)
        self.tensor = torch.frombuffer(view, dtype=torch.uint8)

    def close(self) -> None:
        """Gives it back. No kernel may still use it. Does nothing the second time."""
        if not self.address:
            return
        address, self.address, self.device_address = self.address, 0, 0
        with calls.current(self._context):
            calls.call("cuMemFreeHost", address, doing="freeing pinned memory")


def host_memory(num_bytes: int, device_index: int) -> HostMemory:
    """Pinned memory of this size for a device's kernels.

    Raises:
        DriverError: there is not that much.
    """
    return HostMemory(num_bytes, device_index)
