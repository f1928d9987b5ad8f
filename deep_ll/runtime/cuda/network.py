"""Kernels that reach peers over a network: which module fits the NVSHMEM that was loaded, its queue
pairs, and how much goes into each.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deep_ll import _native
from deep_ll.errors import ArgumentError, LinkUnavailable
from deep_ll.runtime.cuda import images, preflight

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deep_ll._native import Shape
    from deep_ll.runtime.cuda.device import Device

NUM_QUEUES = 4  # queue pairs to each peer
_QUEUES_SINCE = (3, 5)
# Queue pairs lie otherwise in memory from here on, and NVSHMEM's own check does not see it.
_OTHER_QUEUES = (3, 5, 19)
_WORDS = 8  # into a queue beside rows: counts, greeting, signals
_LIBRARY = "libnvshmem_host.so.3"


@dataclass(frozen=True)
class Network:
    """What a heap's kernels need to reach peers over a network; in device memory.

    Attributes:
        image: the fatbin of these kernels.
        depth: messages that a queue pair holds.
        content: what kernels know of the network, csrc/symm/network.hpp.
        linked: uint8 [ranks], 1: behind it.
        kept: what `content` points at.
    """

    image: Path
    depth: int
    content: torch.Tensor
    linked: torch.Tensor
    kept: tuple[torch.Tensor, ...]

    def check_depth(self, shape: Shape) -> None:
        """Whether a call's messages find room in the queue pairs.

        Raises:
            ArgumentError: they do not; kernels would wait for cards in the middle of sending.
        """
        rows = shape.max_tokens * min(shape.num_topk, shape.experts_per_rank)
        most = max(rows, 2 * shape.experts_per_rank)
        needed = -(-most // NUM_QUEUES) + _WORDS
        if needed <= self.depth:
            return
        raise ArgumentError(
            f"num_max_dispatch_tokens_per_rank={shape.max_tokens} with top-k {shape.num_topk}: up "
            f"to {most} messages for a peer over {NUM_QUEUES} queue pairs are {needed} each with "
            f"their signals, NVSHMEM_QP_DEPTH is {self.depth}: set it to "
            f"{1 << (needed - 1).bit_length()} on all ranks before the first buffer, or send fewer "
            "tokens at a time"
        )


def built(folder: Path = images.FOLDER) -> dict[str, Path]:
    """The modules of this installation, by the version of the NVSHMEM that is linked into each."""
    found = {}
    for path in sorted(folder.glob("net_*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        found[str(facts["nvshmem"])] = folder / facts["file"]
    return found


def choose(loaded: str, modules: dict[str, Path]) -> Path:
    """The module for the NVSHMEM that was loaded.

    Args:
        loaded: its version, as "3.4.5".
        modules: from `built()`.

    Raises:
        LinkUnavailable: there is none that fits.
    """
    wanted = preflight.numbers(loaded)
    others = ", ".join(modules) or "none"
    crossing = ""
    for version, path in modules.items():
        numbers = preflight.numbers(version)
        if numbers[:2] != wanted[:2]:
            continue
        if (numbers < _OTHER_QUEUES) == (wanted < _OTHER_QUEUES):
            return path
        crossing = (
            f" (that of {version} is not taken: NVSHMEM 3.5.19 changed how queue pairs lie in "
            "memory, and kernels would hang)"
        )
    raise LinkUnavailable(
        f"NVSHMEM {loaded} was loaded, and this installation has kernels for networks for "
        f"{others}{crossing}: build deep_ll again with this NVSHMEM installed, or with "
        "DEEP_LL_NVSHMEM=FOLDER (docs/gpu.md); or load another one, see LD_LIBRARY_PATH"
    )


def has_queues(version: str) -> bool:
    """Whether this NVSHMEM gives queue pairs to its users."""
    return preflight.numbers(version)[:2] >= _QUEUES_SINCE


def create_queues(count: int) -> list[int]:
    """Queue pairs to all peers. Collective; nvshmem4py has no name for it.

    Raises:
        LinkUnavailable: NVSHMEM does not give them.
    """
    library = ctypes.CDLL(_LIBRARY)  # the one that is loaded
    handles = ctypes.POINTER(ctypes.c_int)()
    status = library.nvshmemx_qp_create(count, ctypes.byref(handles))
    if status != 0 or not handles:
        raise LinkUnavailable(
            f"NVSHMEM gave no queue pairs (status {status}): NVSHMEM_DEBUG=INFO says why"
        )
    return [int(handles[i]) for i in range(count)]


def network(
    device: Device,
    image: Path,
    queues: list[int],
    linked: Sequence[bool],
    window: _native.Window,
    depth: int,
) -> Network:
    """Puts into device memory what kernels need.

    Args:
        device: of this rank.
        image: from `choose`.
        queues: from `create_queues`; before NVSHMEM 3.5 as many numbers, which nobody looks at.
        linked: which ranks are behind the network.
        window: of the heap.
        depth: messages that a queue pair holds.
    """
    handles = device.empty(len(queues), torch.int32)
    handles.copy_(torch.tensor(queues, dtype=torch.int32))
    sent = device.zeros(len(linked), torch.int32)
    flags = device.zeros(len(linked), torch.uint8)
    flags.copy_(torch.tensor(list(linked), dtype=torch.uint8))
    numbers = (handles.data_ptr(), len(queues), sent.data_ptr(), window.mail.offset)
    content = _native.Launches.network(*numbers)
    memory = device.empty(len(content), torch.uint8)
    memory.copy_(torch.frombuffer(content, dtype=torch.uint8))
    return Network(image, depth, memory, flags, (handles, sent))
