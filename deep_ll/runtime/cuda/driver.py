"""Kernels of a fatbin, and their launch on a stream of the caller."""

from __future__ import annotations

import hashlib
import threading

from deep_ll.errors import ArgumentError, DeepLLError
from deep_ll.runtime.cuda import calls
from deep_ll.runtime.cuda.launch import Call, LaunchConfig
from deep_ll.runtime.cuda.untyped import Untyped

__all__ = ["Kernel", "LaunchConfig", "Module"]

_FREE_SHARED_BYTES = 48 << 10  # a block has these without asking


class Kernel:
    """One kernel on one device. It takes one struct by value.

    Attributes:
        name: as in the source, `extern "C"`.
        num_param_bytes: size of its struct.
    """

    def __init__(self, name: str, handle: Untyped, context: Untyped, device_index: int) -> None:
        self.name, self._handle, self._context = name, handle, context
        self._device_index, self._shared_bytes = device_index, 0
        self.num_param_bytes = self._struct_size()
        with calls.current(context):
            doing = f"loading kernel {name}"
            self._function: Untyped = calls.call("cuKernelGetFunction", handle, doing=doing)
            # Now, not at its first launch: that would wait for kernels which wait for this one.
            calls.call("cuFuncLoad", self._function, doing=doing)
        driver = calls.bindings()
        self._function = driver.CUfunction(int(self._function))
        self._launch, self._current = driver.cuLaunchKernelEx, driver.cuCtxGetCurrent
        self._calls = Call()

    def launch(self, config: LaunchConfig, params: bytearray | int, num_bytes: int) -> None:
        """Puts the kernel on a stream. The parameters are copied before it returns.

        Args:
            config: grid, block, stream.
            params: the packed struct, or its address.
            num_bytes: size of the struct.

        Raises:
            DeepLLError: the kernel takes a struct of another size.
            DriverError: the driver refuses the launch, or reports an earlier kernel's failure.
        """
        if num_bytes != self.num_param_bytes:
            raise self._other_build(num_bytes)
        call = self._calls
        if config is not call.config:
            self._check(config)
            call.use(config)
        if params is not call.params:
            call.point_at(params)
        # The default stream has the same name on every device: it is the context that tells.
        if self._current()[1] == self._context:
            code = self._launch(call.native, self._function, call.argv, 0)[0]
        else:
            with calls.current(self._context):
                code = self._launch(call.native, self._function, call.argv, 0)[0]
        if code:
            raise calls.failure(code, f"launching {self.name} with {config}")

    def allow_shared(self, num_bytes: int) -> None:
        """Raises the dynamic shared memory that a block may ask for. Does nothing if it may."""
        if num_bytes <= max(self._shared_bytes, _FREE_SHARED_BYTES):
            return
        attributes = calls.bindings().CUfunction_attribute
        which = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        doing = f"allowing {num_bytes} bytes of shared memory a block to {self.name}"
        device = calls.call("cuDeviceGet", self._device_index, doing=doing)
        calls.call("cuKernelSetAttribute", which, num_bytes, self._handle, device, doing=doing)
        self._shared_bytes = num_bytes

    def resident_blocks(self, num_threads: int, shared_bytes: int = 0) -> int:
        """How many blocks of this size fit on one SM at once."""
        function, doing = self._function, f"asking for the occupancy of {self.name}"
        with calls.current(self._context):
            count = calls.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                *(function, num_threads, shared_bytes),
                doing=doing,
            )
        return int(count)

    def _check(self, config: LaunchConfig) -> None:
        if config.shared_bytes > max(self._shared_bytes, _FREE_SHARED_BYTES):
            raise ArgumentError(
                f"{self.name} is launched with {config.shared_bytes} bytes of shared memory a "
                f"block, it may have {max(self._shared_bytes, _FREE_SHARED_BYTES)}: name the most "
                "it needs in Module.kernel(name, max_shared_bytes)"
            )

    def _struct_size(self) -> int:
        doing = f"asking for the parameters of {self.name}"
        _, size = calls.call("cuKernelGetParamInfo", self._handle, 0, doing=doing)
        if calls.bindings().cuKernelGetParamInfo(self._handle, 1)[0] == 0:
            raise self._other_build(int(size), "takes more than one parameter")
        return int(size)

    def _other_build(self, num_bytes: int, what: str = "") -> DeepLLError:
        what = what or f"takes {self.num_param_bytes} bytes of parameters"
        return DeepLLError(
            f"kernel {self.name} {what}, deep_ll gives one struct of {num_bytes} bytes: the fatbin "
            "and the extension are of different builds, reinstall deep_ll"
        )


class Module:
    """The kernels of a fatbin on one device, loaded once per process."""

    _loaded: dict[tuple[int, bytes], Module] = {}  # noqa: RUF012, one for the process
    _lock = threading.Lock()

    def __init__(self, image: bytes, device_index: int) -> None:
        self._device_index = device_index
        self._context = calls.primary_context(device_index)
        no_options: tuple[object, ...] = (None, None, 0)
        with calls.current(self._context):
            doing = f"loading the kernels on GPU {device_index}"
            self._library = calls.call(
                "cuLibraryLoadData", image, *no_options, *no_options, doing=doing
            )
        self._kernels: dict[str, Kernel] = {}

    @property
    def handle(self) -> int:
        """The driver's, of the whole module."""
        return int(self._library)

    @classmethod
    def load(cls, image: bytes, device_index: int) -> Module:
        """The kernels of a fatbin on a device. Not while a CUDA graph is captured.

        Args:
            image: content of the fatbin.
            device_index: as torch counts.

        Raises:
            GpuUnavailable: no cuda-python or no driver.
            DriverError: the driver does not take it; without code for this GPU, it says so.
        """
        key = device_index, hashlib.sha256(image).digest()
        with cls._lock:
            if key not in cls._loaded:
                cls._loaded[key] = cls(image, device_index)
            return cls._loaded[key]

    def kernel(self, name: str, max_shared_bytes: int = 0) -> Kernel:
        """A kernel, ready to launch.

        Args:
            name: as in the source.
            max_shared_bytes: the most dynamic shared memory a block of it will be given.

        Raises:
            DriverError: there is none of this name, or the device has not that much memory.
            DeepLLError: it does not take exactly one struct.
        """
        with self._lock:
            kernel = self._kernels.get(name)
            if kernel is None:
                doing = f"looking for kernel {name}"
                handle = calls.call("cuLibraryGetKernel", self._library, name.encode(), doing=doing)
                kernel = Kernel(name, handle, self._context, self._device_index)
                self._kernels[name] = kernel
            kernel.allow_shared(max_shared_bytes)
        return kernel
