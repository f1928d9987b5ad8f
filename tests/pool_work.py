"""What the ranks of test_rank_pool.py do."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist


def add_ranks(group: Any, value: int) -> tuple[int, int, int]:
    total = torch.tensor([dist.get_rank(group) + value])
    dist.all_reduce(total, group=group)
    return int(total), os.getpid(), torch.get_num_threads()


def send_tensor(group: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor + dist.get_rank(group)


def raise_on(group: Any, rank: int, others_wait_s: float = 0.0) -> str:
    if dist.get_rank(group) == rank:
        raise LookupError(f"nothing at {rank}")
    time.sleep(others_wait_s)
    return "fine"


class NoPickle(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def raise_no_pickle(group: Any) -> None:
    raise NoPickle("cannot ", "travel")


def return_no_pickle(group: Any) -> Any:
    return lambda: None


def die(group: Any, rank: int) -> str:
    if dist.get_rank(group) == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def sleep(group: Any, seconds: float) -> None:
    time.sleep(seconds)
