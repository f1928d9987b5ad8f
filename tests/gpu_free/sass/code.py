"""A kernel's machine code as a list of instructions, with its loops."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

LINE = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:(?P<guard>@!?U?P\w+)\s+)?(?P<op>[A-Z][\w.]*)"
    r"(?P<rest>[^;]*);\s*/\* 0x[0-9a-f]+ \*/\n\s*/\* 0x(?P<control>[0-9a-f]{16}) \*/",
    re.MULTILINE,
)
LABEL = re.compile(r"^(\.L_\w+):$", re.MULTILINE)
TARGET = re.compile(r"`\((\.L_\w+)\)")


class Instruction(NamedTuple):
    """One instruction; `stall` is for how many cycles it holds up the next one of its warp."""

    op: str
    rest: str
    guard: str
    stall: int

    def matches(self, pattern: str) -> bool:
        """Whether the whole opcode does."""
        return re.fullmatch(pattern, self.op) is not None


@dataclass(frozen=True)
class Kernel:
    """`labels` says which instruction is the next after each label."""

    name: str
    code: list[Instruction]
    labels: dict[str, int]

    def at(self, pattern: str) -> list[int]:
        """Where opcodes match."""
        return [i for i, instruction in enumerate(self.code) if instruction.matches(pattern)]

    def count(self, pattern: str) -> int:
        """How many opcodes match."""
        return len(self.at(pattern))

    def has_before(self, where: int, pattern: str, within: int = 8) -> bool:
        """Whether one of the few instructions before `where` matches."""
        return any(i.matches(pattern) for i in self.code[max(0, where - within) : where])

    def has_after(self, where: int, pattern: str, within: int = 2) -> bool:
        """Whether one of the next few instructions matches."""
        return any(i.matches(pattern) for i in self.code[where + 1 : where + 1 + within])

    @cached_property
    def loops(self) -> list[range]:
        """From where a branch goes back to, up to the branch."""
        found = set()
        for where, instruction in enumerate(self.code):
            target = TARGET.search(instruction.rest)
            if target and instruction.matches(r"BRA(\..*)?"):
                start = self.labels.get(target[1], where + 1)
                if start <= where:
                    found.add((start, where + 1))
        return [range(*ends) for ends in sorted(found)]

    @cached_property
    def innermost(self) -> list[range]:
        """Loops that hold no other."""
        return [
            loop
            for loop in self.loops
            if not any(
                other != loop and other.start >= loop.start and other.stop <= loop.stop
                for other in self.loops
            )
        ]

    def issue_cycles(self, loop: range) -> int:
        """Cycles in which one warp issues a turn, if it never waits and runs all of the code."""
        return sum(max(1, self.code[i].stall) for i in loop)


def _stall(control: str) -> int:
    # Bits 41 to 44 of the upper half; known from measurements, not from documentation.
    return int(control, 16) >> 41 & 15


def parse(text: str) -> dict[str, Kernel]:
    """Kernels of a disassembly with -hex, by their short name: dispatch, combine, credit."""
    kernels = {}
    for section in re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]:
        symbol = section.split(":", 1)[0]
        name = re.match(r"_ZN7deep_ll\d+[a-z0-9]+?\d+([a-z_]+)EN", symbol)
        if name is None:
            continue
        labels_at = [(m.start(), m[1]) for m in LABEL.finditer(section)]
        code, labels = [], {}
        for match in LINE.finditer(section):
            while labels_at and labels_at[0][0] < match.start():
                labels[labels_at.pop(0)[1]] = len(code)
            code.append(
                Instruction(
                    match["op"], match["rest"], match["guard"] or "", _stall(match["control"])
                )
            )
        kernels[name[1]] = Kernel(name[1], code, labels)
    return kernels
