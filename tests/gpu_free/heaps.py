"""Ranks for test_nvshmem.py: threads with a fake nvshmem4py each, processes with the real one."""

from collections.abc import Callable
from typing import Any, TypeVar

from fake_cuda.device import FakeDevice
from fake_cuda.nvshmem import FakeNvshmem, World

from deep_ll.runtime.cuda import nvshmem_settings
from deep_ll.runtime.cuda.demand import NOTHING, Demand
from deep_ll.runtime.cuda.heap import GpuHeap
from deep_ll.runtime.cuda.nvlink import Place
from deep_ll.runtime.cuda.nvshmem import Library
from deep_ll.testing import run_ranks

T = TypeVar("T")
NUM_BYTES = 4096


class Rank:
    """One rank: its fake library, its NVSHMEM, its GPU. A group that looks like processes."""

    in_process = False

    def __init__(self, group: Any, world: World) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size
        self.fake = FakeNvshmem(world, self.rank)
        self.library = Library(self.fake.load)
        self.device = FakeDevice(self.rank, log=self.fake.note)

    def all_gather(self, value: T) -> list[T]:
        self.fake.note("gather")
        return self._group.all_gather(value)

    def open(
        self,
        num_bytes: int = NUM_BYTES,
        allow_pcie_p2p: bool = False,
        demand: Demand = NOTHING,
    ) -> GpuHeap:
        return self.library.open_heap(self, num_bytes, self.device, allow_pcie_p2p, demand)


def on_ranks(size: int, work: Callable[[Rank], T]) -> list[T]:
    """Runs `work` on so many ranks; gives its results."""
    world = World(size)
    return run_ranks(size, lambda group: work(Rank(group, world)), timeout_s=20)


def error_of(work: Callable[[], object]) -> str:
    """Type and text of what `work` raises."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def place(device: FakeDevice) -> Place:
    """A host full of GPUs."""
    return Place("host", "machine", f"0000:{device.index:02X}:00.0", device.name)


def bootstrap(rank: int, uid: object) -> tuple[str, int, int, int]:
    """Runs in a process with the real nvshmem4py and no GPU: it gets as far as finding its peer."""
    from deep_ll.runtime.cuda.nvshmem_job import load

    nvshmem_settings.apply(NUM_BYTES)
    modules = load()
    error = error_of(
        lambda: modules.core.init(
            device=None, uid=uid, rank=rank, nranks=2, initializer_method="uid"
        )
    )
    functions = modules.bindings
    return error, functions.init_status(), functions.my_pe(), functions.n_pes()


def unique_id() -> object:
    """Of the real nvshmem4py."""
    from deep_ll.runtime.cuda.nvshmem_job import load

    return load().core.get_unique_id()
