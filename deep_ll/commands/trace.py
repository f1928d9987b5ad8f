"""One trace of all ranks, and who waited for whom, from the files of DEEP_LL_TRACE.

Times of ranks on one host are of one clock. Hosts are put side by side by their wall clocks, so
they are as far apart as those.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# Milliseconds that a rank (row) waited for another (column).
Matrix: TypeAlias = "list[list[float]]"
_MAX_SHOWN = 16  # ranks in a table
_NEEDS_PLOT = (
    "--heatmap needs matplotlib, which is not installed: pip install matplotlib (it is in the "
    "extra: pip install '.[bench]')"
)


class TraceError(Exception):
    """What is there cannot be merged, or shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("folder", type=Path, help="what DEEP_LL_TRACE was")
    parser.add_argument("-o", "--output", type=Path, help="write the merged trace here (JSON)")
    parser.add_argument("--heatmap", type=Path, help="write who waited for whom here (PNG)")


def run(args: argparse.Namespace) -> int:
    """Prints who waited for whom; 2: there is nothing to be read, or it cannot be drawn."""
    try:
        ranks = read(args.folder)
        matrix = waits_of(ranks)
        print(table(matrix))
        if args.output is not None:
            args.output.write_text(json.dumps(merged(ranks)), encoding="utf-8")
        if args.heatmap is not None:
            draw(matrix, args.heatmap)
    except (TraceError, OSError) as error:
        print(f"deep_ll trace: {error}", file=sys.stderr)
        return 2
    return 0


def read(folder: Path) -> list[dict[str, Any]]:
    """The documents of a folder, by rank. What is no whole one is left out, with a line that says
    so: when a process was killed, the traces of the others are wanted most.

    Raises:
        TraceError: there are none.
    """
    documents = []
    for path in sorted(folder.glob("rank*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            documents.append((document["otherData"]["rank"], document))
        except (ValueError, KeyError, TypeError):
            print(
                f"deep_ll trace: left out {path}, which is no whole trace of a rank: its process "
                "was killed, or still runs",
                file=sys.stderr,
            )
    if not documents:
        raise TraceError(f"{folder} has no whole rank*.json: set DEEP_LL_TRACE to it in all ranks")
    return [document for _, document in sorted(documents, key=lambda pair: pair[0])]


def merged(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document: a process for each rank, a row for each of its buffers, from time 0 on."""
    events, rows = [], dict[int, int]()
    wall = {rank["otherData"]["host"]: rank["otherData"]["wall_ns"] for rank in reversed(ranks)}
    base = ranks[0]["otherData"]["host"]
    for document in ranks:
        facts = document["otherData"]
        shift_us = (wall[facts["host"]] - wall[base]) / 1000
        row = rows[facts["rank"]] = rows.get(facts["rank"], -1) + 1
        for event in document["traceEvents"]:
            moved = {"ts": event["ts"] + shift_us} if "ts" in event else {}
            events.append({**event, "tid": row, **moved})
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= first
    facts = [document["otherData"] for document in ranks]
    return {"traceEvents": events, "otherData": {"ranks": facts}}


def waits_of(ranks: Sequence[dict[str, Any]]) -> Matrix:
    """Who waited for whom, in milliseconds."""
    size = max(document["otherData"]["num_ranks"] for document in ranks)
    matrix = [[0.0] * size for _ in range(size)]
    for document in ranks:
        row = matrix[document["otherData"]["rank"]]
        for event in document["traceEvents"]:
            for peer, waited_us in event.get("args", {}).get("waits_us", {}).items():
                row[int(peer)] += waited_us / 1000
    return matrix


def table(matrix: Matrix) -> str:
    """The matrix in words, or of many ranks the ten that were waited for longest."""
    size = len(matrix)
    totals = [sum(row[peer] for row in matrix) for peer in range(size)]
    order = sorted(range(size), key=lambda peer: -totals[peer])
    if size > _MAX_SHOWN:
        shown = order[:10]
        return "\n".join(f"rank {peer}: waited for {totals[peer]:,.1f} ms in all" for peer in shown)
    lines = ["ms waited by (row) for (column)"]
    lines.append(" " * 8 + "".join(f"{f'rank {peer}':>11}" for peer in range(size)))
    for rank, row in enumerate(matrix):
        lines.append(f"{f'rank {rank}':>8}" + "".join(f"{ms:11,.1f}" for ms in row))
    lines.append(f"{'all':>8}" + "".join(f"{ms:11,.1f}" for ms in totals))
    slowest = f"rank {order[0]}" if totals[order[0]] > 0 else "none"
    return "\n".join([*lines, f"slowest: {slowest}"])


def draw(matrix: Matrix, path: Path) -> None:
    """A heat map of the matrix.

    Raises:
        TraceError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TraceError(_NEEDS_PLOT) from error
    size = len(matrix)
    side = min(4 + 0.3 * size, 16)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(matrix, cmap="inferno_r", vmin=0)
    axes.set(xlabel="for this rank", ylabel="this rank waited", title="Waits between ranks")
    if size <= _MAX_SHOWN:
        axes.set_xticks(range(size))
        axes.set_yticks(range(size))
    figure.colorbar(image, label="ms in all")
    figure.savefig(path, format="png", dpi=120)
