"""Measures one configuration: all contestants in alternating rounds, checked before and after."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import load, memory
from benchmarks.contestants import Walls
from benchmarks.floor import Walls as FloorWalls
from benchmarks.hooks import HookRuns
from benchmarks.product import Description
from benchmarks.progress import Progress
from benchmarks.turns import Turns
from benchmarks.workload import Inputs, Shape


@dataclass(frozen=True)
class Plan:
    """How to measure."""

    names: Sequence[str]  # contestants, deep_ll first; a floor goes with each of PRODUCTS
    iters: int
    num_rounds: int
    seed: int
    paths: bool = False  # whether paths and hook mode are looked at


@dataclass
class Measurement:
    """What was measured."""

    shape: Shape
    walls: dict[str, Walls] = field(default_factory=dict)  # by contestant that is not the floor
    floors: dict[str, FloorWalls] = field(default_factory=dict)  # by name
    floor_kernels: str | None = None
    descriptions: dict[str, list[Description]] = field(default_factory=dict)  # of PRODUCTS
    hooks: dict[str, list[HookRuns]] = field(default_factory=dict)
    iters: dict[str, int] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)  # load by other programs, per round
    notes: list[str] = field(default_factory=list)


def measure(asked: Shape, plan: Plan, progress: Progress) -> Measurement:
    """Runs all contestants on one configuration."""
    free = memory.available_bytes()
    shape, groups = memory.fit(plan.names, asked, free)
    result = Measurement(shape)
    title = f"EP{shape.ep} x {shape.tokens}"
    _note_memory(result, asked, groups, free)
    progress.say(f"{title}: inputs")
    inputs = Inputs(shape, plan.seed)
    try:
        for group in groups:
            Turns(result, inputs, plan, progress, title).run(group)
    finally:
        inputs.close()
    _note_rounds(result, plan)
    return result


def _note_memory(result: Measurement, asked: Shape, groups: memory.Groups, free: int) -> None:
    shape = result.shape
    if shape.tokens != asked.tokens:
        result.notes.append(
            f"EP{shape.ep}: {shape.tokens} instead of {asked.tokens} tokens, "
            f"since {free / 1e9:.1f} GB of memory were free"
        )
    if len(groups) > 1:
        turns = ", then ".join(" with ".join(group) for group in groups)
        result.notes.append(
            f"EP{shape.ep}: one after the other, not in turns ({turns}), "
            f"since {free / 1e9:.1f} GB of memory were free"
        )


def _note_rounds(result: Measurement, plan: Plan) -> None:
    fewer = [f"{num} of {name}" for name, num in result.iters.items() if num < plan.iters]
    if fewer:
        result.notes.append(f"EP{result.shape.ep}: iterations: {', '.join(fewer)}")
    others = statistics.mean(result.others)
    if others > load.NOTABLE:
        used = f"others used {others:.0%} of the machine"
        result.notes.append(f"EP{result.shape.ep}: {used}: do not trust the times")
