"""What the check prints and writes at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from on_gpu.section import Answer

NOTES = (
    "loopback times are of one GPU that plays all ranks: its memory carries every rank's bytes, "
    "and no link is in them. They compare kernels with each other, not machines.",
    "floor: each token read and each choice's row written once (combine: the reverse), at the "
    "speed of a plain copy measured in this run. What fits into the cache may go below it.",
)


def sections_table(answers: dict[str, tuple[Answer, float]]) -> str:
    """A line for each section."""
    lines = [["section", "result", "s", "what"]]
    for name, (answer, seconds) in answers.items():
        lines.append([name, answer.status, f"{seconds:.1f}", answer.summary])
    return _aligned(lines, numbers={2})


def times_table(times: Sequence[dict[str, Any]]) -> str:
    """A line for each time, and how to read them; empty without times."""
    if not times:
        return ""
    lines = [["EP", "tokens", "experts", "SMs", "operation", "us", "floor us", "x floor"]]
    for row in times:
        numbers = [str(row[key]) for key in ("ep", "tokens", "experts", "num_sms")]
        measured = [f"{row['us']:.1f}", f"{row['floor_us']:.1f}", f"{row['x_floor']:.2f}"]
        lines.append([*numbers, row["op"], *measured])
    table = _aligned(lines, numbers={0, 1, 2, 3, 5, 6, 7})
    return "\n".join([table, *(f"note: {note}" for note in NOTES)])


def as_json(answers: dict[str, tuple[Answer, float]], seconds: float, code: int) -> dict[str, Any]:
    """The content of gpu_check.json."""
    facts, _ = answers["facts"]
    sections = {
        name: {**answer._asdict(), "seconds": round(taken, 2)}
        for name, (answer, taken) in answers.items()
        if name != "facts"
    }
    return {
        "exit_code": code,
        "seconds": round(seconds, 1),
        "facts": facts.details,
        "sections": sections,
        "notes": list(NOTES),
    }


def _aligned(lines: list[list[str]], numbers: set[int]) -> str:
    """Words to the left, numbers to the right, a rule under the header."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * min(width, 40) for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
