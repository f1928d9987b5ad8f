"""What the ranks of test_group.py do."""

import os
import warnings
from typing import Any

import torch.distributed as dist
from cases import Case
from exchange import make_buffer, round_trip

import deep_ll

PAIR = Case(world=2, experts=4, topk=2)


def in_a_subgroup(group: Any) -> str:
    """Ranks 0 and 2 of 3 make a group of their own; rank 1 is not in it."""
    pair = dist.new_group([0, 2], backend="gloo")
    if dist.get_rank(group) == 1:
        try:
            deep_ll.Buffer(pair, num_rdma_bytes=1 << 20)
        except deep_ll.ArgumentError as error:
            return str(error)
        return "nothing raised"
    with make_buffer(pair, PAIR) as buf:
        for round_idx in range(3):
            round_trip(buf, PAIR, round_idx)
        return f"rank {buf.rank} of {buf.group_size}"


def drop_without_destroy(group: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_buffer(group, PAIR)
        buf = make_buffer(group, PAIR, explicitly_destroy=True)
        del buf
        with make_buffer(group, PAIR, explicitly_destroy=True):
            pass
    return [str(warning.message) for warning in caught]


def at_level(group: Any, level: str, case: Case) -> None:
    """The same bits from another set of kernels."""
    os.environ["DEEP_LL_CPU_LEVEL"] = level
    try:
        with make_buffer(group, case) as buf:
            for round_idx in range(2):
                round_trip(buf, case, round_idx)
    finally:
        del os.environ["DEEP_LL_CPU_LEVEL"]


def with_streaming(group: Any, streaming: str, case: Case) -> None:
    os.environ["DEEP_LL_STREAMING"] = streaming
    try:
        with make_buffer(group, case) as buf:
            for round_idx in range(2):
                round_trip(buf, case, round_idx)
    finally:
        del os.environ["DEEP_LL_STREAMING"]
