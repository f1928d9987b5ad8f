"""What the tests of DeepEP's low-latency mode import beside Buffer, for CPUs and GPUs."""

from __future__ import annotations

import os
import random

import torch
import torch.distributed as dist

from deep_ll import reference

_WORD = 4  # bytes that hash_tensor takes as one number


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far two tensors are apart: 0 for the same, about (relative error)**2 / 2 for close ones.

    Both are moved away from zero by 1, so that zeros compare too.
    """
    a, b = x.double() + 1, y.double() + 1
    squares = float((a * a).sum() + (b * b).sum())
    return 1 - 2 * float((a * b).sum()) / squares if squares else 0.0


def hash_tensor(t: torch.Tensor) -> int:
    """A number that says whether two tensors hold the same rows, in any order."""
    data = t.reshape(-1).view(torch.uint8)
    row_bytes = t.element_size() * (t.shape[-1] if t.dim() else 1)
    words = data.view(torch.int32) if row_bytes % _WORD == 0 else data
    return int(words.sum(dtype=torch.int64))


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Casts bfloat16 [n, hidden] to float8_e4m3fn with a float32 factor for 128 channels, as a
    dispatch with `use_fp8` does."""
    return reference.quantize(x)


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """Undoes the cast of rows [n, hidden] into bfloat16. Scales are float32, or ue8m0 exponents
    packed into int32; their shape may be any that has as many."""
    num_rows = x_fp8.shape[0]
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    return reference.dequantize(x_fp8, x_scales.reshape(num_rows, -1)).to(torch.bfloat16)


def check_nvlink_connections(group: object) -> None:
    """Nothing: a Buffer of deep_ll finds out for each pair of ranks how it is connected, and
    `Buffer.paths()` tells."""


def check_torch_deterministic() -> None:
    """Raises where torch fills new memory, which DeepEP cannot bear.

    Raises:
        AssertionError: deterministic algorithms are on, with `fill_uninitialized_memory`.
    """
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if torch.are_deterministic_algorithms_enabled() and fills:
        raise AssertionError(
            "torch fills uninitialized memory: set "
            "torch.utils.deterministic.fill_uninitialized_memory = False"
        )


def init_dist(
    local_rank: int, num_local_ranks: int, seed: int = 0
) -> tuple[int, int, dist.ProcessGroup]:
    """Joins a process group by MASTER_ADDR, MASTER_PORT, WORLD_SIZE (hosts) and RANK (this host):
    nccl if torch has GPUs, else gloo. Default dtype and device become bfloat16 and that GPU.

    Returns:
        This rank, the number of ranks, and a group of all of them.
    """
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "8361")
    num_hosts, host = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    world_size = num_hosts * num_local_ranks
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank)
        torch.set_default_device("cuda")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{address}:{port}",
        world_size=world_size,
        rank=host * num_local_ranks + local_rank,
    )
    torch.set_default_dtype(torch.bfloat16)
    rank = dist.get_rank()
    torch.manual_seed(seed + rank)
    random.seed(seed + rank)
    group = dist.new_group(list(range(world_size)))
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"torch.distributed made {group} of {world_size} ranks")
    return rank, world_size, group
