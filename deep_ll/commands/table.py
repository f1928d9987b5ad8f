"""Rows of text as aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A line for each row, two spaces between columns; rows may be shorter than others."""
    num_columns = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(num_columns)]
    lines = ("  ".join(f"{cell:<{widths[i]}}" for i, cell in enumerate(row)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
