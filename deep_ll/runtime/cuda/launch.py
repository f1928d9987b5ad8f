"""What a launch is told, and the form in which the driver takes it."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

from deep_ll.runtime.cuda import calls
from deep_ll.runtime.cuda.untyped import Untyped


@dataclass(frozen=True)
class LaunchConfig:
    """How to launch. Keep and reuse it: a launch with the last one's object costs least.

    Attributes:
        grid: blocks in x, y, z.
        block: threads of a block in x, y, z.
        shared_bytes: dynamic shared memory of a block.
        stream: as torch gives it, `torch.cuda.current_stream().cuda_stream`.
        cooperative: all blocks run at once, or the launch fails.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    stream: int = 0
    cooperative: bool = False


class Call(threading.local):
    """What a thread hands to the driver at each launch of a kernel, made once.

    Per thread, because launches do not hold the interpreter's lock: ranks that are threads would
    change each other's.
    """

    def __init__(self) -> None:
        self.config: LaunchConfig | None = None
        self.params: bytearray | int | None = None
        self.native: Untyped = calls.bindings().CUlaunchConfig()
        self._argv = (ctypes.c_void_p * 1)()
        self.argv = ctypes.addressof(self._argv)
        self._exported: object = None

    def use(self, config: LaunchConfig) -> None:
        """Fills the driver's form."""
        driver, native = calls.bindings(), self.native
        native.gridDimX, native.gridDimY, native.gridDimZ = config.grid
        native.blockDimX, native.blockDimY, native.blockDimZ = config.block
        native.sharedMemBytes = config.shared_bytes
        native.hStream = driver.CUstream(config.stream)
        attributes = []
        if config.cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        native.attrs, native.numAttrs = attributes, len(attributes)
        self.config = config

    def point_at(self, params: bytearray | int) -> None:
        """Where the parameters are. A bytearray cannot be resized from then on."""
        if isinstance(params, int):
            self._exported, self._argv[0] = None, params
        else:
            exported = (ctypes.c_char * len(params)).from_buffer(params)
            self._exported, self._argv[0] = exported, ctypes.addressof(exported)
        self.params = params
