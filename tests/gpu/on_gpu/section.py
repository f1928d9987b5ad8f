"""What a section is given and what it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

RIGHT, WRONG, ABSENT = "right", "WRONG", "not available"
MOST_LETTERS = 160  # of a summary; all of it is in the details


class Answer(NamedTuple):
    """What a section found out."""

    status: str
    summary: str  # a line
    details: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What a section is to do.

    Attributes:
        size: full; small for pytest; dry where there is no GPU.
        spoil: flip bits of results, so that a check that notices nothing is found out.
        say: shows a line while the section runs.
    """

    size: str
    spoil: bool
    say: Callable[[str], None]

    @cached_property
    def device(self) -> Any:
        """The GPU, or what stands in for it."""
        return make_device(self.size == "dry", self.spoil)

    def pick(self, full: T, small: T, dry: T) -> T:
        """The value for this size."""
        return {"full": full, "small": small, "dry": dry}[self.size]


class Problems(list[str]):
    """What is wrong so far. After an error, unlike after wrong bits, nothing more can be asked."""

    stopped = False

    @contextlib.contextmanager
    def of(self, where: str) -> Iterator[None]:
        """Adds the error that ends the block, if any."""
        try:
            yield
        except Exception as error:
            self.append(f"{where}: {in_a_line(error)}")
            self.stopped = True


def in_a_line(error: BaseException) -> str:
    """Its type and the beginning of its text."""
    return " ".join(f"{type(error).__name__}: {error}".split())[: 2 * MOST_LETTERS]


def make_device(dry: bool, spoil: bool = False) -> Any:
    """`CudaDevice` or `HostDevice`, imported only now: not every section needs torch."""
    if dry:
        from on_gpu.host_device import HostDevice

        return HostDevice(spoil)
    from on_gpu.device import CudaDevice

    return CudaDevice(spoil)


def verdict(problems: list[str], summary: str, **details: object) -> Answer:
    """Right with this summary, or wrong with the first problem."""
    if not problems:
        return Answer(RIGHT, summary, details)
    text = f"{len(problems)} wrong, the first: {problems[0]}"
    text = text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 3] + "..."
    return Answer(WRONG, text, {**details, "problems": problems})
