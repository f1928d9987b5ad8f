"""A machine of several GPUs that runs a program."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .build import engine
from .errors import Fault, Hang, PtxError, Race, Unknown
from .program import Program

ERRORS = {1: Race, 2: Hang, 3: Fault, 4: Unknown}
HOST = -1


@dataclass(frozen=True)
class Stats:
    steps: int  # instructions executed by some lanes of a warp


class Machine:
    """Runs launches of all streams side by side, in an order that the seed decides."""

    # How far %globaltimer moves with each step.
    ns_per_step = 100
    # Steps without any change of memory after which waiting counts as a hang.
    hang_steps = 1_000_000
    # Blocks of a launch that are there at a time, in order; 0: all of them.
    resident_blocks = 0
    # One in so many steps parts lanes that run together; 0: never.
    split_one_in = 256
    # Whether reading shared memory that nobody wrote is a fault.
    check_uninitialised = True
    # Steps that a bulk copy may lag behind; random below this.
    copy_delay = 400
    # The same of messages over the network; a few are thirty times as late.
    network_delay = 3000
    # Whether a bulk load needs a proxy fence after generic accesses to the place it overwrites.
    overwrite_needs_fence = True

    def __init__(self, program: Program, num_gpus: int, seed: int = 0, memory: int = 1 << 24):
        self.program, self.num_gpus = program, num_gpus
        self._engine = engine()
        self._handle = self._engine.ptx_machine(program.handle, num_gpus, seed, memory)
        self._ended = ""
        self._place_variables()

    def _place_variables(self) -> None:
        variables = self.program.variables
        addresses = []
        for gpu in range(self.num_gpus):
            for variable in variables:
                address = self.alloc(gpu, variable.size, variable.name, max(variable.align, 16))
                self.array(address, np.uint8, len(variable.value))[:] = list(variable.value)
                addresses.append(address)
        table = (ctypes.c_uint64 * len(addresses))(*addresses)
        self._engine.ptx_symbols(self._handle, table, len(variables), self.num_gpus)

    def alloc(self, gpu: int | None, nbytes: int, name: str, align: int = 256) -> int:
        """Memory of a GPU, or of the host for None, filled with zeros. Returns its address."""
        where = HOST if gpu is None else gpu
        address = self._engine.ptx_alloc(self._handle, where, nbytes, align, name.encode())
        if address == 0:
            raise MemoryError(f"{nbytes} bytes for {name}: raise memory in Machine(...)")
        return address

    def array(self, address: int, dtype, count: int) -> np.ndarray:
        """What lies at an address, to read or to fill in. The machine must outlive it."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * count
        if nbytes == 0:
            return np.zeros(0, dtype)
        data = self._engine.ptx_data(self._handle, address, nbytes)
        if data is None:
            raise IndexError(f"{nbytes} bytes at {address:#x} are not within one allocation")
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(data), dtype)

    def join(self, addresses: list[int], nbytes: int, queues: Iterable[int] = ()) -> None:
        """From now on kernels can call NVSHMEM: `nbytes` at each GPU's address are symmetric, and
        queue pairs have these numbers, which follow each other."""
        table = (ctypes.c_uint64 * self.num_gpus)(*addresses)
        handles = list(queues)
        first = handles[0] if handles else 0
        self._engine.ptx_network(self._handle, table, nbytes, first, len(handles))

    def launch(
        self,
        gpu: int,
        kernel: str,
        grid: int | Iterable[int],
        block: int | Iterable[int],
        shared_bytes: int = 0,
        params: bytes = b"",
        stream: int = 0,
    ) -> None:
        """Enqueues a launch; `run` executes it, after those enqueued before it on its stream."""
        entry = self.program.entries[kernel]
        if len(params) > entry.param_bytes or not 0 <= gpu < self.num_gpus:
            raise ValueError(
                f"{kernel}: {len(params)} bytes of parameters for GPU {gpu}; it takes "
                f"{entry.param_bytes}, and there are {self.num_gpus} GPUs"
            )
        address = self.alloc(gpu, max(entry.param_bytes, 16), f"parameters of {kernel}")
        self.array(address, np.uint8, len(params))[:] = np.frombuffer(params, np.uint8)
        geometry = (ctypes.c_uint32 * 6)(*_three(grid), *_three(block))
        self._engine.ptx_launch(
            self._handle, gpu, stream, entry.index, geometry, shared_bytes, address
        )

    def run(self, max_steps: int = 50_000_000) -> Stats:
        """Executes all that is enqueued. What was run before is ordered before it."""
        if self._ended:
            raise RuntimeError(f"this machine ended with: {self._ended}")
        options = (ctypes.c_uint64 * 8)(
            *(self.ns_per_step, self.hang_steps, self.resident_blocks, self.split_one_in),
            *(self.check_uninitialised, self.copy_delay, self.overwrite_needs_fence),
            self.network_delay,
        )
        self._engine.ptx_options(self._handle, options)
        steps = ctypes.c_uint64(0)
        code = self._engine.ptx_run(self._handle, max_steps, ctypes.byref(steps))
        if code != 0:
            self._ended = self._engine.ptx_error(self._handle).decode()
            raise ERRORS.get(code, PtxError)(self._ended)
        return Stats(steps.value)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._engine.ptx_machine_free(self._handle)


def _three(size: int | Iterable[int]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (*sizes, 1, 1, 1)[:3]
