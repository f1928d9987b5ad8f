"""Checks of what every rank needs: Python, torch, the processor, memory, limits."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import socket
from pathlib import PurePosixPath

import torch
import torch.distributed as dist

from deep_ll import _native, env
from deep_ll.commands.doctor.lines import BROKEN, OK, WARNING, Line, Machine
from deep_ll.errors import ArgumentError
from deep_ll.runtime import handover, memory
from deep_ll.runtime import machine as this_machine
from deep_ll.runtime.cuda import preflight

_OLDEST_TORCH = (2, 6)
_LITTLE_MEMORY, _NO_MEMORY = 1 << 30, 64 << 20
_SMALL_SHM = 64 << 20  # what docker gives without being asked
_FEW_FILES = 256
_LEVEL_FLAGS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "bmi2", "fma", "f16c", "movbe"},
}


def python(machine: Machine) -> list[Line]:
    """The interpreter."""
    return [Line("python", OK, f"{platform.python_version()}, {platform.platform()}")]


def torch_library(machine: Machine) -> list[Line]:
    """Its version, and the backend that ranks on CPUs meet by."""
    version = str(torch.__version__)
    if preflight.numbers(version)[:2] < _OLDEST_TORCH:
        return [Line("torch", BROKEN, version, "pip install 'torch>=2.6'")]
    if not (dist.is_available() and dist.is_gloo_available()):
        cure = "install a torch that is built with gloo; ranks on CPUs meet by it"
        return [Line("torch", BROKEN, f"{version}, without gloo", cure)]
    return [Line("torch", OK, f"{version}, gloo")]


def processor(machine: Machine) -> list[Line]:
    """The kernels for this processor."""
    built, asked = _native.levels(), env.settings().cpu_level
    try:
        level = this_machine.cpu_level(asked)
    except ArgumentError as error:
        return [Line("cpu level", BROKEN, str(error), "unset DEEP_LL_CPU_LEVEL")]
    found = f"{level} (built and usable: {', '.join(built)})"
    match = re.search(r"^flags\s*:(.*)$", machine.text("proc/cpuinfo") or "", re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    better = [name for name, needed in _LEVEL_FLAGS.items() if needed <= flags]
    if better and not {"native", better[0]} & set(built):
        cure = "build deep_ll with a compiler that knows it; see the messages of the build"
        found = f"{found}; the processor could run {better[0]}"
        return [Line("cpu level", WARNING, found, cure)]
    return [Line("cpu level", OK, found)]


def cores(machine: Machine) -> list[Line]:
    """Cores, and whether a cgroup lets this process use them."""
    count, quota = this_machine.num_cores(), _quota(machine)
    if quota is not None and quota < count:
        cure = (
            f"ranks would be stopped in the middle of a call: give the container {count} CPUs, or "
            "pin it to fewer (--cpuset-cpus) instead of a quota"
        )
        return [Line("cores", WARNING, f"{count}, but a quota of {quota:g} CPUs", cure)]
    return [Line("cores", OK, f"{count}, {os.cpu_count()} in the machine")]


def _quota(machine: Machine) -> float | None:
    """CPUs that the cgroups of this process may use; None: no limit."""
    quotas = []
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = PurePosixPath("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup")
        for place in (folder, *(folder / part for part in _ancestry(path))):
            quotas.append(_quota_in(machine, str(place).lstrip("/"), bool(controllers)))
    return min((quota for quota in quotas if quota is not None), default=None)


def _ancestry(path: str) -> list[str]:
    """ "/a/b" as "a" and "a/b"."""
    parts = path.strip("/").split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _quota_in(machine: Machine, folder: str, is_v1: bool) -> float | None:
    if is_v1:
        quota = machine.text(f"{folder}/cpu.cfs_quota_us") or "-1"
        period = machine.text(f"{folder}/cpu.cfs_period_us") or "100000"
    else:
        quota, _, period = (machine.text(f"{folder}/cpu.max") or "max").partition(" ")
    return None if quota in ("max", "-1") else int(quota) / int(period)


def free_memory(machine: Machine) -> list[Line]:
    """What can still be touched, limits of cgroups included."""
    in_machine, headroom = memory.free_bytes(machine.root), memory.cgroup_headroom(machine.root)
    free = min([in_machine, *headroom])
    found = f"{memory.mib(free)} free"
    if free < in_machine:
        found += f" by a cgroup's limit, {memory.mib(in_machine)} in the machine"
    if free >= _LITTLE_MEMORY:
        return [Line("memory", OK, found)]
    cure = "raise the container's memory limit (docker: --memory), or end what takes it"
    return [Line("memory", BROKEN if free < _NO_MEMORY else WARNING, found, cure)]


def shared_memory(machine: Machine) -> list[Line]:
    """/dev/shm, which deep_ll does not use, but what is used beside it does."""
    place = machine.root / "dev/shm"
    try:
        stat = os.statvfs(place)
    except OSError as error:
        cure = "mount a tmpfs there; deep_ll needs none, NCCL and torch's data loaders do"
        return [Line("/dev/shm", WARNING, f"none ({error.strerror})", cure)]
    size, free = (blocks * stat.f_frsize for blocks in (stat.f_blocks, stat.f_bavail))
    found = f"{memory.mib(free)} of {memory.mib(size)} free; deep_ll does not use it"
    if free <= _SMALL_SHM:
        cure = "docker: --shm-size=8g or --ipc=host, for NCCL, UCX and torch's data loaders"
        return [Line("/dev/shm", WARNING, found, cure)]
    return [Line("/dev/shm", OK, found)]


def sealed_memory(machine: Machine) -> list[Line]:
    """Whether heaps can be made and handed over: memfd, seals, descriptors over a socket."""
    name = "shared heaps"
    try:
        with handover.sealed_memory(4096) as made, contextlib.ExitStack() as opened:
            pair = [opened.enter_context(each) for each in socket.socketpair()]
            listener = opened.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"\0deep_ll-doctor-{secrets.token_hex(8)}")
            socket.send_fds(pair[0], [b"."], [made.fd])
            _, fds, _, _ = socket.recv_fds(pair[1], 1, 1)
            os.close(fds[0])
    except OSError as error:
        cure = (
            "allow memfd_create with seals and Unix sockets in the container's seccomp profile, or "
            "use a kernel that has them; between processes allow_nvlink_traffic=False needs neither"
        )
        return [Line(name, BROKEN, f"cannot be handed over: {error}", cure)]
    return [Line(name, OK, "memfd with seals, handed over by a Unix socket")]


def namespaces(machine: Machine) -> list[Line]:
    """Ranks of one network namespace hand memory over; others are reached by the network."""
    found = []
    for kind in ("net", "pid", "ipc"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(machine.root / f"proc/self/ns/{kind}"))
    if not found:
        return [Line("namespaces", WARNING, "/proc/self/ns cannot be read", "mount /proc")]
    note = "ranks that share net: hand memory over (one container, or --network=host)"
    return [Line("namespaces", OK, f"{' '.join(found)}; {note}")]


def limits(machine: Machine) -> list[Line]:
    """Limits of this user's processes."""
    soft = _soft_limits(machine.text("proc/self/limits") or "")
    files, locked = soft.get("Max open files"), soft.get("Max locked memory")
    space = soft.get("Max address space")
    lines = [Line("open files", OK, _number(files))]
    if files is not None and files < _FEW_FILES:
        cure = "ulimit -n 4096: a rank keeps a descriptor for each peer of its host, and more"
        lines = [Line("open files", WARNING, _number(files), cure)]
    if space is not None:
        cure = "ulimit -v unlimited: every rank maps every rank's heap, gigabytes each"
        lines.append(Line("address space", WARNING, _number(space), cure))
    has_nics = bool(machine.folders("sys/class/infiniband"))
    if locked is None or not has_nics:
        found = _number(locked) + ("" if has_nics else "; only network cards need more")
        return [*lines, Line("locked memory", OK, found)]
    cure = "ulimit -l unlimited (docker: --ulimit memlock=-1): cards register the whole heap"
    return [*lines, Line("locked memory", WARNING, _number(locked), cure)]


def _soft_limits(text: str) -> dict[str, int | None]:
    """The soft limits of /proc/self/limits; None: unlimited."""
    found: dict[str, int | None] = {}
    for name, soft in re.findall(r"^(Max [a-z ]+?)\s{2,}(\S+)", text, re.MULTILINE):
        found[name] = None if soft == "unlimited" else int(soft)
    return found


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit:,}"


CHECKS = (
    python,
    torch_library,
    processor,
    cores,
    free_memory,
    shared_memory,
    sealed_memory,
    namespaces,
    limits,
)
