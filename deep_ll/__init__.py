"""deep_ll: low-latency expert-parallel dispatch and combine over symmetric memory."""

import importlib

from deep_ll.buffer import Buffer, topk_idx_t
from deep_ll.errors import (
    ArgumentError,
    DeepLLError,
    GpuUnavailable,
    HeapMemoryError,
    LinkUnavailable,
    NormalModeError,
    OrderError,
    PeerError,
    PeerTimeout,
)
from deep_ll.event import EventHandle, EventOverlap
from deep_ll.handle import Handle
from deep_ll.information import __version__, info
from deep_ll.normal_mode import Config
from deep_ll.plan import Plan
from deep_ll.runtime.store_group import StoreGroup

__all__ = [
    "ArgumentError",
    "Buffer",
    "Config",
    "DeepLLError",
    "EventHandle",
    "EventOverlap",
    "GpuUnavailable",
    "Handle",
    "HeapMemoryError",
    "LinkUnavailable",
    "NormalModeError",
    "OrderError",
    "PeerError",
    "PeerTimeout",
    "Plan",
    "StoreGroup",
    "__version__",
    "info",
    "topk_idx_t",
]


def __getattr__(name: str) -> object:
    """`deep_ll.ops`, only when it is asked for: what it takes from torch is young."""
    if name == "ops":
        return importlib.import_module("deep_ll.ops")
    raise AttributeError(f"module 'deep_ll' has no attribute {name!r}")
