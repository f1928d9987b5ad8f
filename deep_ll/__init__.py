"""deep_ll: low-latency expert-parallel dispatch and combine over symmetric memory."""

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
    "__version__",
    "info",
    "topk_idx_t",
]
