"""Which of the faults that tests put into kernels are put in by default: each is a build."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def chosen(faults: Sequence[T]) -> list[T]:
    """Every second one; DEEP_LL_MUTANTS=all: all of them."""
    return list(faults if os.environ.get("DEEP_LL_MUTANTS") == "all" else faults[::2])
