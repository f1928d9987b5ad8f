"""Looks for what keeps deep_ll from working here: each line ok, warning, broken or absent.

A broken line means that calls will fail; a warning, that they work, but not as they could; what is
absent is not needed for what this machine can do otherwise. Each wrong line has its cure below it.
Exit status: 0 without a broken line, 1 with one, 2 for wrong arguments.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deep_ll import env
from deep_ll.commands.doctor import cards, exchange, gpus, host, network, variables
from deep_ll.commands.doctor.lines import BROKEN, WARNING, Machine, examine, table
from deep_ll.commands.table import aligned
from deep_ll.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from deep_ll.commands.doctor.exchange import Reached
    from deep_ll.commands.doctor.lines import Check, Line

CHECKS: tuple[Check, ...] = (
    *host.CHECKS,
    *gpus.CHECKS,
    *cards.CHECKS,
    *network.CHECKS,
    *variables.CHECKS,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--ranks",
        type=_count,
        metavar="N",
        help="also run a dispatch and a combine among N processes of this machine, compare every "
        "byte, and tell how each reaches each",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what this machine is meant for, and where --ranks runs: on GPUs there must be one "
        "for each rank (auto: GPUs if they are there and usable)",
    )


def _count(text: str) -> int:
    """A number of ranks, from 1; anything else is a wrong argument."""
    number = int(text)
    if number < 1:
        raise ValueError(f"{number} ranks")
    return number


def run(args: argparse.Namespace) -> int:
    """Prints what was found; 1 if something is broken."""
    machine = Machine(gpu_wanted="cuda" in (args.device, _asked_device()))
    lines = examine(machine, CHECKS)
    paths: list[list[Reached]] = []
    if args.ranks:
        device = args.device
        if device == "auto":
            device = exchange.device_for(args.ranks, machine)
        line, paths = exchange.exchange(args.ranks, device)
        lines.append(line)
    print(_as_json(lines, paths) if args.json else _as_text(lines, paths))
    return int(any(line.state == BROKEN for line in lines))


def _asked_device() -> str:
    """Where the environment wants buffers; "" if it cannot be understood, which a check says."""
    try:
        return env.settings().device
    except ArgumentError:
        return ""


def _as_json(lines: Sequence[Line], paths: Sequence[Sequence[Reached]]) -> str:
    told = {
        "lines": [line._asdict() for line in lines],
        "paths": [[reached._asdict() for reached in own] for own in paths],
        "broken": sum(line.state == BROKEN for line in lines),
        "warnings": sum(line.state == WARNING for line in lines),
    }
    return json.dumps(told, indent=2)


def _as_text(lines: Sequence[Line], paths: Sequence[Sequence[Reached]]) -> str:
    parts = [table(lines)]
    if paths:
        header = ("", *(f"to {peer}" for peer in range(len(paths))))
        rows = [(f"rank {r}", *(each.kind for each in own)) for r, own in enumerate(paths)]
        reasons = sorted({(each.kind, each.reason) for own in paths for each in own})
        parts += ["", aligned([header, *rows]), "", aligned(reasons)]
    broken, warnings = (sum(line.state == s for line in lines) for s in (BROKEN, WARNING))
    parts += ["", f"{broken} broken, {warnings} warnings"]
    return "\n".join(parts)
