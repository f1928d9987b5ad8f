"""The table of questions in docs/memory_model.md. `python table.py --write` puts it there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from litmus.grid import TEAMS
from litmus.proxies import PROXIES
from litmus.questions import SIGNALS

TOPICS = {**SIGNALS, **TEAMS, **PROXIES}
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "memory_model.md"
BEGIN, END = "<!-- litmus: begin -->\n", "<!-- litmus: end -->\n"


def markdown() -> str:
    lines = ["| of | program | failure | why |", "| --- | --- | --- | --- |"]
    for topic, questions in TOPICS.items():
        for question in questions:
            answer = "**allowed**" if question.allowed else "forbidden"
            first = topic if question is questions[0] else ""
            lines.append(f"| {first} | {question.text} | {answer} | {question.why} |")
    return "\n".join(lines) + "\n"


def parts(document: str) -> tuple[str, str, str]:
    """Before the table, the table, after it."""
    before, _, rest = document.partition(BEGIN)
    table, _, after = rest.partition(END)
    return before + BEGIN, table, END + after


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        print(markdown(), end="")
        return
    before, _, after = parts(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(before + markdown() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
