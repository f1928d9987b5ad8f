"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import LABELS, Row


def render(rows: Sequence[Row], peers: Sequence[str], notes: Sequence[str]) -> str:
    """Aligned columns, a blank line between configurations, notes below."""
    header = [
        "EP",
        "tokens",
        "operation",
        "path",
        "p50 ms",
        "p99 ms",
        "GB/s",
        "floor ms",
        "x floor",
    ]
    header += [f"vs {name}" for name in peers]
    lines = [header, *(_cells(row, peers) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = []
    for index, line in enumerate(lines):
        if index > 1 and _configuration(lines[index - 1]) != _configuration(line):
            text.append("")
        text.append("  ".join(_aligned(cell, i, widths[i]) for i, cell in enumerate(line)).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*text, *(f"note: {note}" for note in notes)])


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    ratios = row.peer_ratios
    return [
        str(row.shape.ep),
        str(row.shape.tokens),
        LABELS[row.op],
        row.way.path,
        f"{row.p50_ms:.3f}",
        f"{row.p99_ms:.3f}",
        f"{row.gbps:.2f}",
        "-" if row.floor_ms is None else f"{row.floor_ms:.3f}",
        "-" if row.floor_ratio is None else f"{row.floor_ratio:.2f}",
        *(f"{ratios[name]:.1f}x" if name in ratios else "-" for name in peers),
    ]


def _configuration(line: Sequence[str]) -> tuple[str, ...]:
    ep, tokens, _, path, *_ = line
    return ep, tokens, path


def _aligned(cell: str, column: int, width: int) -> str:
    """Words to the left, numbers to the right."""
    return cell.ljust(width) if column in (2, 3) else cell.rjust(width)
