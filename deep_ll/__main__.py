"""`python -m deep_ll COMMAND`."""

from __future__ import annotations

import argparse
import inspect
import sys
from typing import TYPE_CHECKING

from deep_ll import commands

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; wrong arguments exit with 2."""
    parser = argparse.ArgumentParser(prog="python -m deep_ll", description="deep_ll's commands")
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in commands.NAMES:
        about = inspect.getdoc(commands.load(name)) or ""
        own = names.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        commands.load(name).add_arguments(own)
    args = parser.parse_args(argv)
    return commands.load(args.command).run(args)


if __name__ == "__main__":
    sys.exit(main())
