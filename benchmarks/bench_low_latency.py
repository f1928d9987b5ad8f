"""Dispatch and combine of deep_ll between processes, next to the floor and to what else there is.

README.md beside this file tells how it measures and what the columns mean. Exit codes: 0 fine, 1 a
check failed or a rank died, 2 bad usage.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Rank processes load this file too, and need nothing of it.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the repository, not this folder
    try:
        import deep_ll  # noqa: F401
    except ImportError as error:
        print(f"{error}\nbuild deep_ll first: make build", file=sys.stderr)
        sys.exit(2)

    from benchmarks.cli import main

    sys.exit(main())
