"""Where DeepEP 2 has its events."""

from deep_ll import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
