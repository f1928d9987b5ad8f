"""Where DeepEP 2 has the Buffer of DeepEP 1."""

from deep_ll import Config, EventHandle, EventOverlap
from deep_ll.compat.deep_ep import Buffer

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
