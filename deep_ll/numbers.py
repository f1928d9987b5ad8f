"""Buffers by number, in the order in which this process made them: graphs hold numbers, not
objects."""

from __future__ import annotations

import itertools
import weakref

_next = itertools.count()
_living: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def number_of(buffer: object) -> int:
    """Gives a new buffer its number."""
    number = next(_next)
    _living[number] = buffer
    return number


def buffer_of(number: int) -> object | None:
    """The buffer of this number; None: there is none, or it was dropped."""
    return _living.get(number)
