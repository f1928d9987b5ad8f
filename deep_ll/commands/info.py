"""What this installation is and what it found on this machine: deep_ll.info() as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deep_ll import information
from deep_ll.commands.table import aligned

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print deep_ll.info() as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints it; always 0."""
    told = information.info()
    print(json.dumps(told, indent=2) if args.json else _table(told))
    return 0


def _table(told: dict[str, Any]) -> str:
    gpu = dict(told["gpu"])
    findings = gpu.pop("findings")
    rows = [(name, _text(value)) for name, value in told.items() if not isinstance(value, dict)]
    rows += [(f"runtime {name}", found) for name, found in told["runtimes"].items()]
    rows += [(f"gpu {name}", _text(value)) for name, value in gpu.items()]
    rows += [(f"gpu needs {each['name']}", _found(each)) for each in findings]
    return aligned(rows)


def _found(finding: dict[str, Any]) -> str:
    return finding["found"] if finding["ok"] else f"{finding['found']} -> {finding['cure']}"


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
