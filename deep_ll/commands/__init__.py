"""The commands of `python -m deep_ll`, a module each.

A module is a Command: its docstring's first line is what the list of commands says of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import argparse

NAMES = ("doctor", "info", "trace")


class Command(Protocol):
    """What a module of a command has."""

    __doc__: str | None

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declares the command's own options."""

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Does it; returns the exit status."""


def load(name: str) -> Command:
    """The command of this name."""
    return cast("Command", importlib.import_module(f"deep_ll.commands.{name}"))
