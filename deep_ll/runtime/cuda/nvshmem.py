"""Symmetric heaps of processes with a GPU each, by NVSHMEM.

NVSHMEM allocates and maps; kernels only see addresses. It is started once per process, for one
group of ranks and one GPU, and all buffers share it. What it does is collective, so a rank that
fails alone would leave its peers waiting: every step ends with a verdict of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deep_ll import _native, env
from deep_ll.errors import ArgumentError, DeepLLError, LinkUnavailable, PeerError
from deep_ll.runtime.cuda import network, nvlink, nvshmem_job, nvshmem_settings, preflight
from deep_ll.runtime.cuda.demand import NOTHING, Demand
from deep_ll.runtime.cuda.heap import GpuHeap, bases_on
from deep_ll.runtime.cuda.together import together
from deep_ll.runtime.paths import LINK, agree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.cuda.network import Network
    from deep_ll.runtime.cuda.nvlink import Place
    from deep_ll.runtime.cuda.nvshmem_job import Job, Modules
    from deep_ll.runtime.cuda.nvshmem_settings import Setting
    from deep_ll.runtime.group import Group

_ANY_DEPTH = 1 << 30  # where no queue pair is used


class Library:
    """NVSHMEM of this process: started by the first heap, finished by `finalize()`. One thread at
    a time may use it.
    """

    def __init__(self, load: Callable[[], Modules] = nvshmem_job.load) -> None:
        self._load = load
        self._modules: Modules | None = None
        self._job: Job | None = None
        self._heaps: list[GpuHeap] = []
        self._kernels: list[int] = []  # that NVSHMEM knows of
        self._queues: list[int] = []

    @property
    def settings(self) -> list[Setting]:
        """Under which it was started."""
        return list(self._job.settings) if self._job else []

    def open_heap(
        self,
        group: Group,
        num_bytes: int,
        device: Device,
        allow_pcie_p2p: bool,
        demand: Demand = NOTHING,
    ) -> GpuHeap:
        """As the function of this module."""
        places = self._agree(group, num_bytes, device)
        ways: list[nvlink.Reach] = []
        with together(group, "checking the links to peers"):
            ways = nvlink.reach(group.rank, places, allow_pcie_p2p)
            if self._modules is None:
                self._modules = self._load()
        modules = self._modules
        assert modules is not None
        paths, any_linked = agree(group, _why_not(group, ways, demand))
        reasons = tuple(path.reason if path.kind == LINK else "" for path in paths)
        wanted = nvshmem_settings.NO_NETWORK
        window = _native.Window.carve(num_bytes, group.size)
        whole = num_bytes
        if any_linked:
            with together(group, "checking what a network between GPUs needs"):
                _require_network(group, places, ways, demand)
                self._check_started_for(demand.settings())
            wanted = _agreed(group, demand)
            # Outputs wait behind the heap.
            whole = window.outputs(0) + 2 * window.combine.slot_bytes
        if self._job is None:
            self._job = nvshmem_job.start(modules, group, device, whole, wanted)
        memory = _allocate(modules, group, whole, device)
        bases: list[int] = []
        net: Network | None = None
        try:
            with together(group, "mapping the heaps of peers"):
                linked = [bool(reason) for reason in reasons]
                bases = _map(modules, group, memory.data_ptr(), places, linked)
                _check_unmapped(modules, memory.data_ptr(), reasons, ways, demand)
            if any_linked:
                depth = _ANY_DEPTH if demand.forced else env.settings().qp_depth
                net = self._open_network(group, device, linked, window, depth)
        except Exception:
            # On all ranks, as freeing must be.
            modules.core.free_tensor(memory)
            raise
        heap = GpuHeap(
            rank=group.rank,
            bases=bases,
            num_bytes=num_bytes,
            memory=memory,
            num_local_ranks=sum(place.machine == places[group.rank].machine for place in places),
            peer_bases_on_device=bases_on(device, bases),
            links=tuple(way.link for way in ways),
            network=net,
            reasons=reasons if any_linked else (),
            _release=lambda: self._free(heap, group, device),
        )
        self._heaps.append(heap)
        return heap

    def finalize(self) -> None:
        """Closes the heaps that are open, then ends NVSHMEM. Collective."""
        while self._heaps:
            self._heaps[0].close()
        # What something else has started is not ours to end.
        if self._job is not None and self._modules is not None and self._job.settings:
            for handle in self._kernels:
                self._modules.bindings.culibrary_finalize(handle)
            self._modules.core.finalize()
        self._kernels.clear()
        self._queues.clear()
        self._job = None

    def _check_started_for(self, wanted: nvshmem_settings.Wanted) -> None:
        if self._job is None or self._job.has_network:
            return
        if wanted.network and not wanted.forced:
            raise ArgumentError(
                "NVSHMEM was started in this process for peers that NVLink joins, and reads its "
                "environment once: make the first buffer of the process the one with "
                "allow_nvlink_traffic=False, or the one that reaches other hosts"
            )

    def _open_network(
        self,
        group: Group,
        device: Device,
        linked: list[bool],
        window: _native.Window,
        depth: int,
    ) -> Network:
        """Queue pairs and kernels for a heap with peers behind a network. Collective."""
        job, modules = self._job, self._modules
        assert job is not None
        assert modules is not None
        versions = group.all_gather(job.version)
        with together(group, "choosing the kernels for networks"):
            if len(set(versions)) > 1:
                raise PeerError(f"ranks have loaded different NVSHMEM: {versions}")
            image = network.choose(job.version, network.built())
        # Only now: on a rank that asks alone it would wait for ever.
        queues = [1] * network.NUM_QUEUES
        if network.has_queues(job.version):
            with together(group, "asking NVSHMEM for queue pairs"):
                self._queues = self._queues or modules.create_queues(network.NUM_QUEUES)
            queues = self._queues
        net: Network | None = None
        with together(group, "telling NVSHMEM of the kernels"):
            handle = modules.load_kernels(image, device.index)
            if handle not in self._kernels:
                if status := modules.bindings.culibrary_init(handle):
                    raise LinkUnavailable(
                        f"NVSHMEM does not take the kernels of {image.name} (status {status}): "
                        "NVSHMEM_DEBUG=INFO says why"
                    )
                self._kernels.append(handle)
            net = network.network(device, image, queues, linked, window, depth)
        assert net is not None
        return net

    def _agree(self, group: Group, num_bytes: int, device: Device) -> list[Place]:
        """Checks that all ranks can and want the same."""
        place: Place | None = None
        with together(group, "checking what GPUs need"):
            if group.in_process:
                raise ArgumentError("NVSHMEM needs ranks that are processes, these are threads")
            preflight.require(device.index)
            self._check_job(group, device)
            place = nvlink.place_of(device)
        answers = group.all_gather((place, num_bytes, self._job.token if self._job else ""))
        sizes = [size for _, size, _ in answers]
        if len(set(sizes)) > 1:
            raise ArgumentError(f"the heaps of a buffer must have one size, ranks ask for {sizes}")
        tokens = [token for _, _, token in answers]
        if len(set(tokens)) > 1:
            strangers = [rank for rank, token in enumerate(tokens) if token != tokens[group.rank]]
            raise PeerError(_other_group(f"ranks {strangers} are not in it"))
        return [place for place, _, _ in answers if place is not None]

    def _check_job(self, group: Group, device: Device) -> None:
        job = self._job
        if job is None:
            return
        if (job.rank, job.size) != (group.rank, group.size):
            raise ArgumentError(
                _other_group(
                    f"it knows this process as rank {job.rank} of {job.size}, the new group as "
                    f"rank {group.rank} of {group.size}"
                )
            )
        if job.device_index != device.index:
            raise ArgumentError(
                f"NVSHMEM was started on GPU {job.device_index} and can have no heap on GPU "
                f"{device.index}: use one GPU per process"
            )

    def _free(self, heap: GpuHeap, group: Group, device: Device) -> None:
        with together(group, "waiting for the kernels of a heap to be closed"):
            device.synchronize()
            if heap.network is not None and self._modules is not None:
                # What those kernels have put may still be on its way.
                self._modules.bindings.quiet_on_stream(0)
                device.synchronize()
        with together(group, "freeing a heap"):
            if self._modules is not None:
                self._modules.core.free_tensor(heap.memory)
        self._heaps = [other for other in self._heaps if other is not heap]


def _other_group(what: str) -> str:
    return (
        f"NVSHMEM was started in this process for another group: {what}. It serves one group per "
        "process: make all buffers with the same group, or this one in other processes"
    )


def _allocate(modules: Modules, group: Group, num_bytes: int, device: Device) -> torch.Tensor:
    memory: torch.Tensor | None = None
    with together(group, f"allocating {num_bytes} bytes of symmetric memory"):
        # except_on_del: a heap that is never closed is no error at the end of the process.
        memory = modules.core.bytetensor((num_bytes,), dtype=torch.uint8, except_on_del=False)
        if memory is None:
            raise DeepLLError("nvshmem4py gives no tensors: it does not find torch")
    assert memory is not None
    with together(group, "clearing the heap"):
        memory.zero_()
        # Peers write as soon as all have passed: the verdict is the barrier.
        device.synchronize()
    return memory


def _why_not(group: Group, ways: list[nvlink.Reach], demand: Demand) -> list[str]:
    """Why each peer is not to be mapped; "" if it is."""
    against = [demand.against(group.rank, peer) for peer in range(group.size)]
    return [
        "" if peer == group.rank else against[peer] or ("" if way.safe else way.link)
        for peer, way in enumerate(ways)
    ]


def _require_network(
    group: Group, places: list[Place], ways: list[nvlink.Reach], demand: Demand
) -> None:
    problem = demand.problem()
    apart = [peer for peer, way in enumerate(ways) if not way.safe]
    if demand.forced and apart:
        raise LinkUnavailable(
            f"DEEP_LL_FORCE_LINK=1 is for checks among GPUs that NVLink joins, and none joins rank "
            f"{group.rank} to ranks {apart[:4]}: leave it out"
        )
    if not problem:
        return
    if not apart:
        raise LinkUnavailable(
            f"{demand.wish.refused or 'ranks are to use a network'}, but {problem}"
        )
    raise nvlink.refusal(group.rank, places, ways, problem)


def _map(
    modules: Modules, group: Group, address: int, places: list[Place], linked: list[bool]
) -> list[int]:
    """What is for peers behind a network lies in this rank's own memory first."""
    bases = [
        address if linked[peer] else int(modules.bindings.ptr(address, peer))
        for peer in range(group.size)
    ]
    missing = [f"rank {peer} ({places[peer]})" for peer, base in enumerate(bases) if base == 0]
    if missing:
        raise PeerError(
            f"NVSHMEM does not map the memory of {', '.join(missing[:4])} for rank {group.rank} "
            f"({places[group.rank]}): NVSHMEM_DEBUG=INFO says why. In containers, ranks need one "
            "IPC and network namespace; or try NVSHMEM_DISABLE_CUDA_VMM=1"
        )
    return bases


def _check_unmapped(
    modules: Modules, address: int, reasons: Sequence[str], ways: list[nvlink.Reach], demand: Demand
) -> None:
    """NVSHMEM stores to a peer whose memory it maps, also where deep_ll asks it to put."""
    if demand.forced:
        return
    for peer, reason in enumerate(reasons):
        is_wanted = demand.wish.refused or not ways[peer].safe
        if reason and is_wanted and modules.bindings.ptr(address, peer) != 0:
            raise LinkUnavailable(
                f"rank {peer} is to be reached over the network ({reason}), but NVSHMEM maps its "
                "memory and would store there: set NVSHMEM_DISABLE_P2P=1 in the environment of all "
                "ranks, before the first buffer of the process"
            )


def _agreed(group: Group, demand: Demand) -> nvshmem_settings.Wanted:
    """GPUs drive the cards if all can, and queue pairs are of one depth."""
    wanted, depth = demand.settings(), env.settings().qp_depth
    answers = group.all_gather((wanted.by_gpu, depth))
    depths = [theirs for _, theirs in answers]
    if len(set(depths)) > 1:
        raise ArgumentError(f"NVSHMEM_QP_DEPTH must be the same on all ranks, they have {depths}")
    return wanted._replace(by_gpu=all(by_gpu for by_gpu, _ in answers))


_library = Library()


def open_heap(
    group: Group,
    num_bytes: int,
    device: Device,
    allow_pcie_p2p: bool = False,
    demand: Demand = NOTHING,
) -> GpuHeap:
    """A zeroed heap on the GPU of each rank, and the addresses of all. Collective.

    Args:
        group: ranks that are processes. The first call decides for which group NVSHMEM is started.
        num_bytes: size of one rank's heap, the same on all.
        device: this rank's GPU.
        allow_pcie_p2p: also take peers that only PCIe joins.
        demand: what the caller and the environment want of a network.

    Raises:
        GpuUnavailable: something is missing here; nothing was started.
        LinkUnavailable: nothing is to be mapped, and there is no network.
        ArgumentError: another group, GPU or size than can be.
        PeerError: a peer cannot be reached safely, or another rank failed; it says which and why.
    """
    return _library.open_heap(group, num_bytes, device, allow_pcie_p2p, demand)


def settings() -> list[Setting]:
    """The environment variables under which NVSHMEM runs; empty before the first heap."""
    return _library.settings


def finalize() -> None:
    """Closes all heaps of this process and ends NVSHMEM. Collective; never done by itself."""
    _library.finalize()
