"""Machines as files: /proc and /sys of one that has everything, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

GPUS = ("0000:17:00.0", "0000:65:00.0")
_GIDS = "sys/class/infiniband/mlx5_1/ports/1"
_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            {files}              1048576              files
Max locked memory         {locked}             unlimited            bytes
Max address space         {space}              unlimited            bytes
"""

Files = dict[str, str | None]  # None: not there, nor what is below it


def limits(files: str = "65536", locked: str = "unlimited", space: str = "unlimited") -> Files:
    return {"proc/self/limits": _LIMITS.format(files=files, locked=locked, space=space)}


def meminfo(free_mib: int) -> Files:
    return {"proc/meminfo": f"MemTotal: 67108864 kB\nMemAvailable:   {free_mib * 1024} kB\n"}


def _card(name: str, layer: str, pci: str) -> Files:
    port = f"sys/class/infiniband/{name}/ports/1"
    return {
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/phys_state": "5: LinkUp\n",
        f"{port}/link_layer": f"{layer}\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"sys/devices/{pci}/vendor": "0x15b3\n",
        f"sys/devices/{pci}/numa_node": pci[5] + "\n",
        f"sys/class/infiniband/{name}/device": f"-> sys/devices/{pci}",
    }


def _gpu(bus_id: str, place: str) -> Files:
    return {
        f"sys/devices/{place}/vendor": "0x10de\n",
        f"sys/devices/{place}/class": "0x030200\n",
        f"sys/devices/{place}/numa_node": place[5] + "\n",
        f"sys/bus/pci/devices/{bus_id}": f"-> sys/devices/{place}",
    }


GOOD: Files = {
    **limits(),
    **meminfo(32768),
    "proc/cpuinfo": "processor : 0\nflags : fpu sse4_2\n",
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/memory.max": "max\n",
    "sys/fs/cgroup/job/memory.current": "1048576\n",
    "dev/shm/.keep": "",
    "dev/infiniband/uverbs0": "",
    # A GPU and a card below one bridge, on NUMA node 0 and on NUMA node 1.
    **_gpu(GPUS[0], "pci000/bridge/gpu"),
    **_gpu(GPUS[1], "pci001/bridge/gpu"),
    **_card("mlx5_0", "InfiniBand", "pci000/bridge/card"),
    **_card("mlx5_1", "Ethernet", "pci001/bridge/card"),
    f"{_GIDS}/gids/0": "fe80:0000:0000:0000:5c25:73ff:fe00:0001\n",
    f"{_GIDS}/gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{_GIDS}/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    f"{_GIDS}/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{_GIDS}/gid_attrs/types/0": "RoCE v2\n",
    f"{_GIDS}/gid_attrs/types/1": "IB/RoCE v1\n",
    f"{_GIDS}/gid_attrs/types/3": "RoCE v2\n",
    "sys/module/nvidia_peermem/refcnt": "0\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n",
    "proc/driver/nvidia/params": (
        'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n'
    ),
}


class Sick(NamedTuple):
    """What is different from GOOD, and the line that must tell."""

    meaning: str
    files: Files
    name: str
    state: str
    found: str
    cure: str
    environment: dict[str, str] = {}  # noqa: RUF012 (nobody writes it)

    def __str__(self) -> str:
        return self.meaning.replace(" ", "_")


_PORT = "sys/class/infiniband/mlx5_0/ports/1"
_NO_CARDS: Files = {"sys/class/infiniband": None}
_IBGDA = {"NVSHMEM_IB_ENABLE_IBGDA": "1"}
_NO_P2P = {"NVSHMEM_DISABLE_P2P": "1"}

SICK = (
    Sick("little memory", meminfo(500), "memory", "warning", "500.0 MiB free", "--memory"),
    Sick("no memory", meminfo(20), "memory", "broken", "20.0 MiB free", "end what takes it"),
    Sick(
        "cgroup limit",
        {
            "sys/fs/cgroup/job/memory.max": f"{300 << 20}\n",
            "sys/fs/cgroup/job/memory.current": f"{260 << 20}\n",
        },
        "memory",
        "broken",
        "40.0 MiB free by a cgroup's limit, 32768.0 MiB in the machine",
        "raise the container's memory limit",
    ),
    Sick(
        "cgroup limit of a parent, v1",
        {
            "proc/self/cgroup": "4:memory:/pod/job\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{2000 << 20}\n",
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": f"{1500 << 20}\n",
        },
        "memory",
        "warning",
        "500.0 MiB free by a cgroup's limit",
        "memory limit",
    ),
    Sick(
        "quota of CPUs",
        {"sys/fs/cgroup/job/cpu.max": "50000 100000\n"},
        "cores",
        "warning",
        "a quota of 0.5 CPUs",
        "--cpuset-cpus",
    ),
    Sick(
        "quota of CPUs, v1",
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/pod/job\n0::/\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "30000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
        "cores",
        "warning",
        "a quota of 0.3 CPUs",
        "instead of a quota",
    ),
    Sick(
        "kernels not built",
        {"proc/cpuinfo": "flags : avx512f avx512bw avx512cd avx512dq avx512vl extra\n"},
        "cpu level",
        "warning",
        "the processor could run v4",
        "a compiler that knows it",
    ),
    Sick("no shm", {"dev/shm": None}, "/dev/shm", "warning", "none (No such file", "mount a tmpfs"),
    Sick("few files", limits(files="64"), "open files", "warning", "64", "ulimit -n"),
    Sick("small address space", limits(space="1000000"), "address space", "warning", "1,000,000",
         "ulimit -v unlimited"),
    Sick("locked memory", limits(locked="65536"), "locked memory", "warning", "65,536",
         "memlock=-1"),
    Sick("no procfs", {"proc": None}, "free memory", "warning", "this check failed: FileNotFound",
         "report it"),
    Sick("no driver", {"proc/driver": None}, "driver module", "broken", "2 NVIDIA GPUs on the PCI",
         "--gpus all"),
    Sick("no card", _NO_CARDS, "rdma cards", "absent", "only GPUs of several hosts", ""),
    Sick("no card, but P2P is off", _NO_CARDS, "rdma cards", "broken", "none in /sys",
         "unset NVSHMEM_DISABLE_P2P", _NO_P2P),
    Sick("nor any other way", _NO_CARDS, "NVSHMEM_DISABLE_P2P", "broken", "no RDMA card",
         "the only way here", _NO_P2P),
    Sick("ibgda without a card", _NO_CARDS, "NVSHMEM_IB_ENABLE_IBGDA", "warning", "no RDMA card",
         "mlx5", _IBGDA),
    Sick("card not in the container", {"dev/infiniband": None}, "rdma devices", "warning",
         "no /dev/infiniband", "--device=/dev/infiniband"),
    Sick(
        "cable not plugged",
        {f"{_PORT}/state": "1: DOWN\n", f"{_PORT}/phys_state": "3: Disabled\n"},
        "port mlx5_0:1",
        "warning",
        "InfiniBand, DOWN, 400 Gb/sec (4X NDR), Disabled",
        "plug the cable",
    ),
    Sick("no subnet manager", {f"{_PORT}/state": "2: INIT\n"}, "port mlx5_0:1", "warning",
         "INIT", "opensm"),
    Sick(
        "all ports down",
        {f"{_PORT}/state": "1: DOWN\n", f"{_GIDS}/state": "1: DOWN\n"},
        "rdma cards",
        "broken",
        "no port that works",
        "bring a port up",
        _NO_P2P,
    ),
    Sick("no address", {f"{_GIDS}/gids/3": None}, "port mlx5_1:1", "warning",
         "no RoCE v2 GID with an address", "Unable to create ah"),
    Sick("wrong GID", {}, "port mlx5_1:1", "broken", "NVSHMEM_IB_GID_INDEX=1 is none",
         "RoCE v2: 0, 3", {"NVSHMEM_IB_GID_INDEX": "1"}),
    Sick(
        "card at the other node",
        {"sys/class/infiniband/mlx5_1": None},
        f"card of gpu {GPUS[1]}",
        "warning",
        "mlx5_0, NUMA node 1, card at 0",
        "NVSHMEM_HCA_LIST",
    ),
    Sick(
        "two GPUs at a card",
        {f"sys/bus/pci/devices/{GPUS[1]}": "-> sys/devices/pci000/bridge/gpu2",
         "sys/devices/pci000/bridge/gpu2/vendor": "0x10de\n",
         "sys/devices/pci000/bridge/gpu2/class": "0x030200\n"},
        "cards of gpus",
        "warning",
        "several GPUs are nearest to mlx5_0, others idle",
        "NVSHMEM_HCA_PE_MAPPING",
    ),
    Sick(
        "cards of another maker",
        {"sys/devices/pci000/bridge/card/vendor": "0x14e4\n",
         "sys/devices/pci001/bridge/card/vendor": "0x14e4\n"},
        "ibgda: card",
        "broken",
        "none of mlx5 (mlx5_0, mlx5_1)",
        "for NVIDIA's mlx5 cards only",
        _IBGDA,
    ),
    Sick("no peermem", {"sys/module": None}, "ibgda: gpu memory", "warning",
         "neither peermem nor dmabuf", "modprobe nvidia_peermem"),
    Sick("no peermem, but needed", {"sys/module": None}, "ibgda: gpu memory", "broken",
         "neither peermem nor dmabuf", "dmabuf", _IBGDA),
    Sick(
        "no regkey",
        {"proc/driver/nvidia/params": 'EnableStreamMemOPs: 1\nRegistryDwords: ""\n'},
        "ibgda: driver keys",
        "warning",
        "missing PeerMappingOverride=1",
        "NVreg_RegistryDwords",
    ),
    Sick("no regkeys at all", {"proc/driver/nvidia/params": None}, "ibgda: driver keys", "warning",
         "missing EnableStreamMemOPs=1, PeerMappingOverride=1", "reboot"),
    Sick("value", {}, "environment", "broken", "DEEP_LL_TIMEOUT_S='soon'", "unset it",
         {"DEEP_LL_TIMEOUT_S": "soon"}),
    Sick("typo", {}, "DEEP_LL_TIMEOUT", "warning", "nobody reads",
         "did you mean DEEP_LL_TIMEOUT_S?", {"DEEP_LL_TIMEOUT": "5"}),
    Sick("threads", {}, "DEEP_LL_NUM_THREADS", "warning", "5000 threads a rank", "cores / ranks",
         {"DEEP_LL_NUM_THREADS": "5000"}),
    Sick("interface", {}, "GLOO_SOCKET_IFNAME", "broken", "no interface nic7", "there are ",
         {"GLOO_SOCKET_IFNAME": "nic7"}),
    Sick("no GPU", {}, "DEEP_LL_DEVICE", "broken", "cuda, but there is no GPU", "unset",
         {"DEEP_LL_DEVICE": "cuda"}),
    Sick("hidden GPUs", {}, "CUDA_VISIBLE_DEVICES", "warning", "hides all GPUs", "DEEP_LL_DEVICE",
         {"CUDA_VISIBLE_DEVICES": ""}),
    Sick("no way at all", {}, "NVSHMEM_DISABLE_P2P", "broken", "NVSHMEM_REMOTE_TRANSPORT=none",
         "no way to any peer", {**_NO_P2P, "NVSHMEM_REMOTE_TRANSPORT": "none"}),
    Sick("short queues", {}, "NVSHMEM_QP_DEPTH", "warning", "64, too few", "128 at least",
         {"NVSHMEM_QP_DEPTH": "64"}),
    Sick("no level", {}, "cpu level", "broken", "DEEP_LL_CPU_LEVEL='base'", "unset",
         {"DEEP_LL_CPU_LEVEL": "base"}),
    Sick("link without UCX", {}, "ucx", "broken", "/no/libucp.so.0", "deep_ll[net]",
         {**_NO_P2P, "DEEP_LL_LIBUCP": "/no/libucp.so.0"}),
)  # fmt: skip


def make(root: Path, changes: Files) -> Path:
    """Writes GOOD with changes; "-> path" is a link to what is at that path below root."""
    files = {
        path: text
        for path, text in {**GOOD, **changes}.items()
        if text is not None
        and not any(path.startswith(f"{gone}/") for gone, t in changes.items() if t is None)
    }
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(root / text[3:])
        else:
            place.write_text(text)
    for kind in ("net", "pid", "ipc"):
        place = root / f"proc/self/ns/{kind}"
        if "proc" not in changes:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(f"{kind}:[4026531840]")
    return root
