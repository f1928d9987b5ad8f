"""Where DeepEP 1 has its Buffer."""

from deep_ll import Config, EventHandle, EventOverlap
from deep_ll.compat.deep_ep import Buffer

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
