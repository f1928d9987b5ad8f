"""Environment variables of NVSHMEM that deep_ll sets before it starts, and why."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from deep_ll.runtime.cuda.network import NUM_QUEUES

_MIB = 1 << 20
_SMALLEST_STEP, _LARGEST_STEP = 32 * _MIB, 512 * _MIB
_OWN_BYTES = 256 * _MIB  # what NVSHMEM itself puts into the symmetric heap, generously
_WISH = "NVSHMEM_DISABLE_P2P"
_TRUE = ("1", "y", "yes", "t", "true", "on")


class Setting(NamedTuple):
    """A variable of NVSHMEM, for buffer.plan().

    Attributes:
        name: of the environment variable.
        value: what NVSHMEM was started with.
        why: what for.
        by_user: it was set before, so deep_ll left it alone.
    """

    name: str
    value: str
    why: str
    by_user: bool


class Wanted(NamedTuple):
    """What is wanted of a network.

    Attributes:
        network: peers are behind one.
        by_gpu: GPUs drive the cards themselves (IBGDA); else the CPU does.
        only: no peer's memory is to be mapped.
        forced: mapped peers are to be reached in this way too; needs no network.
    """

    network: bool
    by_gpu: bool = False
    only: bool = False
    forced: bool = False


NO_NETWORK = Wanted(False)


def apply(num_bytes: int, wanted: Wanted = NO_NETWORK) -> list[Setting]:
    """Sets what the user has not set. To be called before NVSHMEM starts.

    Args:
        num_bytes: of the first heap.
        wanted: of a network.
    """
    settings = []
    for name, value, why in [*_of_network(wanted), *_wanted(num_bytes)]:
        before = os.environ.get(name)
        if name == _WISH:  # an argument said so, and arguments win
            before = before if before == value else None
            os.environ[name] = value
        os.environ.setdefault(name, value)
        settings.append(Setting(name, before or value, why, before is not None))
    return settings


@contextlib.contextmanager
def wish_of_the_user() -> Iterator[None]:
    """Afterwards the variable by which users choose paths is as it was: other buffers follow it."""
    before = os.environ.get(_WISH)
    try:
        yield
    finally:
        os.environ.pop(_WISH, None)
        if before is not None:
            os.environ[_WISH] = before


def _of_network(wanted: Wanted) -> list[tuple[str, str, str]]:
    """As DeepEP sets them, but that what the user has set stays."""
    if not wanted.network or wanted.forced:
        return [
            ("NVSHMEM_REMOTE_TRANSPORT", "none", "all peers are reached by NVLink; needs no NIC")
        ]
    settings = [
        ("NVSHMEM_QP_DEPTH", "1024", "messages that a queue pair holds"),
        ("NVSHMEM_MAX_TEAMS", "7", "no teams are used; less memory"),
        ("NVSHMEM_IBGDA_NUM_RC_PER_PE", str(NUM_QUEUES), "queue pairs to each peer"),
    ]
    if wanted.by_gpu:
        settings.append(("NVSHMEM_IB_ENABLE_IBGDA", "1", "GPUs drive the cards themselves"))
    if wanted.only:
        settings.append((_WISH, "1", "no peer's memory is to be mapped"))
    return settings


def _wanted(num_bytes: int) -> list[tuple[str, str, str]]:
    step = str(_step(num_bytes))
    wanted = [
        ("NVSHMEM_DISABLE_NVLS", "1", "multicast is not used; less memory and start-up time"),
        ("NVSHMEM_DISABLE_NCCL", "1", "no collective of NVSHMEM is used on data"),
        ("NVSHMEM_CPU_AFFINITY", "OFF", "threads stay where the framework has put them (3.8)"),
        ("NVSHMEM_CUMEM_GRANULARITY", step, "step in which device memory is taken"),
    ]
    if _is_set("NVSHMEM_DISABLE_CUDA_VMM"):
        # Otherwise its heap grows as needed.
        size = str(num_bytes + _OWN_BYTES)
        wanted.append(("NVSHMEM_SYMMETRIC_SIZE", size, "this heap and what NVSHMEM needs"))
    return wanted


def _step(num_bytes: int) -> int:
    """A power of two that wastes an eighth of the heap at most, within what was tried by others."""
    step = _SMALLEST_STEP
    while step * 2 <= min(num_bytes // 8, _LARGEST_STEP):
        step *= 2
    return step


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE
