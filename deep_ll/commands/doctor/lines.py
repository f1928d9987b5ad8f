"""What checks look at and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deep_ll.commands.table import aligned
from deep_ll.errors import ArgumentError
from deep_ll.runtime.cuda import preflight

if TYPE_CHECKING:
    from typing import TypeAlias

    from deep_ll.runtime.cuda.preflight import Finding

    Check: TypeAlias = Callable[["Machine"], list["Line"]]

OK, WARNING, BROKEN, ABSENT = "ok", "warning", "broken", "absent"
_DISPLAY_CLASS = "0x03"  # of PCI: display controllers, which GPUs are
_NVIDIA = "0x10de"


class Line(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: what.
        state: "ok"; "warning": works, but not as it could; "broken": calls will fail; "absent": not
            there, and not needed for what this machine can do otherwise.
        found: what there is.
        cure: the command or the step that helps; empty if nothing is wrong.
    """

    name: str
    state: str
    found: str
    cure: str = ""


@dataclass
class Machine:
    """The machine as checks see it; tests give another root, with files of their own.

    Attributes:
        root: what /proc, /sys and /dev are in.
        survey: all that GPUs need, found or not.
        gpu_wanted: whether there is NVIDIA hardware, or somebody asks for a GPU.
    """

    root: Path = Path("/")
    survey: list[Finding] = field(default_factory=lambda: preflight.survey())
    gpu_wanted: bool = False

    def __post_init__(self) -> None:
        self.gpu_wanted = self.gpu_wanted or bool(self.gpus())

    def text(self, path: str) -> str | None:
        """The content of a file, stripped; None if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def folders(self, path: str) -> list[Path]:
        """What is in a folder, by name; nothing if there is none."""
        place = self.root / path
        return sorted(place.iterdir()) if place.is_dir() else []

    def gpus(self) -> list[Path]:
        """The folders of NVIDIA's GPUs on the PCI bus; their names are bus ids."""
        return [
            each
            for each in self.folders("sys/bus/pci/devices")
            if self.text(f"{each}/vendor") == _NVIDIA
            and (self.text(f"{each}/class") or "").startswith(_DISPLAY_CLASS)
        ]

    def unless_needed(self) -> str:
        """The state of a thing that only GPUs need and that is not there."""
        return BROKEN if self.gpu_wanted else ABSENT


def examine(machine: Machine, checks: Sequence[Check]) -> list[Line]:
    """What all checks say. One that fails says so and does not stop the others."""
    lines = []
    for check in checks:
        try:
            lines += check(machine)
        except ArgumentError as error:  # of the environment, which has a line of its own
            name = check.__name__.replace("_", " ")
            lines.append(Line(name, WARNING, f"not checked: {error}", "set the variable right"))
        except Exception as error:
            name = check.__name__.replace("_", " ")
            found = f"this check failed: {type(error).__name__}: {error}"
            lines.append(Line(name, WARNING, found, "please report it with this line"))
    return lines


def table(lines: Sequence[Line]) -> str:
    """For people: a row for each line, its cure below."""
    rows: list[tuple[str, ...]] = []
    for line in lines:
        rows.append((line.state, line.name, line.found))
        if line.cure:
            rows.append(("", "", f"-> {line.cure}"))
    return aligned(rows)
