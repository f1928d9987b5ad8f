"""DeepEP 1's utils, and all that is in DeepEP 2's utils here."""

import importlib

from deep_ll import EventHandle, EventOverlap
from deep_ll.compat.deep_ep.helpers import (
    calc_diff,
    check_nvlink_connections,
    check_torch_deterministic,
    hash_tensor,
    init_dist,
    per_token_cast_back,
    per_token_cast_to_fp8,
)
from deep_ll.compat.deep_ep.timing import bench, bench_kineto

__all__ = [
    "EventHandle",
    "EventOverlap",
    "bench",
    "bench_kineto",
    "calc_diff",
    "check_nvlink_connections",
    "check_torch_deterministic",
    "hash_tensor",
    "init_dist",
    "per_token_cast_back",
    "per_token_cast_to_fp8",
]

for _name in ("envs", "event", "math", "testing"):
    importlib.import_module(f"{__name__}.{_name}")
