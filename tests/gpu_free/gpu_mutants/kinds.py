"""What a mutant is: edits of csrc/, and the runs of which one must notice it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MEMORY, TEAM, COPY, LEAGUE, SIGNAL, QUANTIZE, REARRANGE, REDUCE, LOGFMT, LINK, NETWORK = (
    f"team/gpu/{name}.cuh"
    for name in (
        "memory",
        "gpu_team",
        "copy",
        "league",
        "signal",
        "quantize",
        "rearrange",
        "reduce",
        "logfmt",
        "link",
        "network",
    )
)
DISPATCH, COMBINE, PHASES, ACCEPT, ARGS = (
    f"ep/{name}.hpp" for name in ("dispatch", "combine", "phases", "accept", "args")
)
WORDS, WINDOW = "team/signal.hpp", "ep/window.hpp"
SHRINK, MEMBERS = "ep/shrink.hpp", "team/members.hpp"
RACE, HANG, FAULT, BYTES = "^Race", "^Hang", "^Fault", "differ"


@dataclass(frozen=True)
class Mutant:
    edits: tuple[tuple[str, str, str], ...]  # file, what is there, what is put instead
    runs: str  # names of runs.RUNS, one after the other until it is noticed
    sign: str = RACE  # what the error says
    equivalent: str = ""  # why nobody can notice it
    arch: str = "sm_90a"
    route: str = ""  # of kernels with peers behind a network

    @property
    def instructions(self) -> list[tuple[str, str]]:
        """What it puts instead of which instructions, if that is all: PTX has them as the source
        does, so nothing has to be compiled."""
        swaps = [(old, new) for file, old, new in self.edits if file == MEMORY]
        alike = len(swaps) == len(self.edits) and all(_is_instruction(a, b) for a, b in swaps)
        return [(old[1:], new[1:]) for old, new in swaps] if alike else []


def _is_instruction(*texts: str) -> bool:
    return all(re.fullmatch(r'"[a-z][a-z0-9_.:]*', text) for text in texts)


def one(
    file: str, old: str, new: str, runs: str = "few", sign: str = RACE, equivalent: str = ""
) -> Mutant:
    return Mutant(((file, old, new),), runs, sign, equivalent)


def without(file: str, before: str, dropped: str, after: str, *rest: str, **more: str) -> Mutant:
    """A text less, which is told by what stands around it."""
    return one(file, before + dropped + after, before + " " + after, *rest, **more)
