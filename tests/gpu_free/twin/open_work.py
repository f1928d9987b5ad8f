"""What test_gpu_life.py runs of how buffers begin: which GPU, which share of it, which plan."""

import threading
from typing import Any

import torch
from cases import Case
from exchange import round_trip

from deep_ll import gpu_memory, gpu_open
from deep_ll.runtime.cuda.nvshmem_settings import Setting
from twin import world
from twin.cases import make_buffer, on_ranks
from twin.graph_work import error_of


def plan(group: Any, case: Case) -> str:
    """The plan of a buffer on a GPU, with what NVSHMEM would have been started with."""
    with make_buffer(group, case) as buf:
        found = buf.plan()
        assert sum(part.num_bytes for part in found.parts) == found.num_bytes == buf.num_rdma_bytes
        assert (found.on_gpu, found.settings, found.num_local_ranks) == (True, (), case.world)
        buf._session.heap.settings = (
            Setting("NVSHMEM_REMOTE_TRANSPORT", "none", "needs no NIC", by_user=False),
            Setting("NVSHMEM_CPU_AFFINITY", "AUTO", "threads stay", by_user=True),
        )
        return str(buf.plan())


def crowd(group: Any, case: Case) -> list[Any]:
    """Blocks of all ranks on a GPU run at once: each has its share of the multiprocessors."""
    with make_buffer(group, case, num_sms=100) as buf:
        found: list[Any] = [buf._session._kernels._num_sms]
        heap = buf._session.heap
        device = world.TwinDevice.of(torch.device("cuda", 0))
        heap.links = ("own", *["same GPU"] * 200)
        return [*found, error_of(lambda: gpu_open._num_sms(heap, device, 32))]


def not_by_load_and_store(group: Any, case: Case) -> str:
    """Ranks that share a GPU have no network between them."""
    return error_of(lambda: make_buffer(group, case, allow_nvlink_traffic=False))


def current_gpu(group: Any, case: Case) -> tuple[int, int]:
    """ "cuda" means torch's current GPU, for what is checked and for what is used."""
    asked, cuda = [], torch.cuda
    kept = gpu_open.preflight.require, cuda.is_available, cuda.current_device
    gpu_open.preflight.require = lambda index, nvshmem: asked.append(index)
    cuda.is_available, cuda.current_device = lambda: True, lambda: 1
    try:
        with make_buffer(group, case) as buf:
            round_trip(buf, case, 0)
            used = {launch.device for launch in world.enter().launches()}
            assert used == {1}
            return asked[0], buf._session._kernels._device.index
    finally:
        gpu_open.preflight.require, cuda.is_available, cuda.current_device = kept


class Alone:
    """A group of one rank that looks like a process with NVSHMEM."""

    rank, size, in_process = 0, 1, False

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


def by_nvshmem(group: Any, case: Case) -> str:
    """A heap of NVSHMEM: its settings are in the plan, the default stream is a process's own."""
    kept = gpu_open.nvshmem.open_heap, gpu_open.nvshmem.settings
    heaps = []

    def open_heap(_group: Any, num_bytes: int, device: Any, *_others: Any) -> Any:
        heaps.append(gpu_open.loopback.open_heap(group, num_bytes, device))
        return heaps[0]

    gpu_open.nvshmem.open_heap = open_heap
    setting = Setting("NVSHMEM_DISABLE_NVLS", "1", "not used", by_user=False)
    gpu_open.nvshmem.settings = lambda: [setting]
    try:
        buf = make_buffer(Alone(), case)
    finally:
        gpu_open.nvshmem.open_heap, gpu_open.nvshmem.settings = kept
    with world.on_stream(0):
        round_trip(buf, case, 0)
    text, memory = str(buf.plan()), buf._session._memory
    buf.destroy()
    assert memory not in gpu_memory._open
    assert heaps[0]._release is None
    return text.splitlines()[-1]


def one_cannot(group: Any, case: Case) -> str:
    """A rank that cannot open its session tells the others, instead of leaving them waiting."""
    opened, kept = len(gpu_memory._open), gpu_memory.host_memory
    fails = threading.current_thread()
    group.barrier()
    if group.rank == 1:
        gpu_memory.host_memory = lambda *args: (
            refuse() if threading.current_thread() is fails else kept(*args)
        )
    group.barrier()
    text = error_of(lambda: make_buffer(group, case))
    gpu_memory.host_memory = kept
    group.barrier()
    assert len(gpu_memory._open) == opened
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
    return text


def refuse() -> None:
    raise MemoryError("there is none")


def run(name: str, case: Case, *args: Any) -> list[Any]:
    return on_ranks(case.world, globals()[name], case, *args)
