"""The plot: time over EP, one panel for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import LABELS, Row
from benchmarks.workload import OPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: dict[str, dict[str, Any]] = {
    "deep_ll": {"color": "#0b6e4f", "marker": "o", "linewidth": 2.2, "zorder": 3},
    "floor": {"color": "#555555", "marker": "_", "linestyle": "--", "zorder": 2},
    "gloo": {"color": "#c1440e", "marker": "s"},
    "mpi": {"color": "#2b5c9e", "marker": "^"},
    "deep_ll, link only": {"color": "#8a5fbf", "marker": "D", "linewidth": 2.2, "zorder": 3},
    "floor, link only": {"color": "#8a5fbf", "marker": "_", "linestyle": ":", "zorder": 2},
}
LINK_ONLY = ", link only"


def save(rows: Sequence[Row], path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, panels = plt.subplots(2, 2, figsize=(10, 7.5), sharex=True, layout="constrained")
    for op, axes in zip(OPS, panels.flat, strict=True):
        _draw(axes, [row for row in rows if row.op == op])
        axes.set_title(LABELS[op])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted({row.shape.ep for row in rows}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(which="major", alpha=0.4)
        axes.grid(which="minor", alpha=0.12)
    for axes in panels[:, 0]:
        axes.set_ylabel("ms until all ranks are done (p50)")
    for axes in panels[1]:
        axes.set_xlabel("ranks (EP)")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(_title(rows))
    figure.savefig(path, dpi=140, format="png")
    plt.close(figure)


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        suffix = LINK_ONLY if row.way.disable_p2p else ""
        lines.setdefault(f"deep_ll{suffix}", {})[row.shape.ep] = row.p50_ms
        if row.floor_ms is not None:
            lines.setdefault(f"floor{suffix}", {})[row.shape.ep] = row.floor_ms
    for name in sorted({name for row in rows for name in row.peers_ms}):
        lines[name] = {row.shape.ep: row.peers_ms[name] for row in rows if name in row.peers_ms}
    for name, points in lines.items():
        if points:
            axes.plot(list(points), list(points.values()), label=name, **STYLES.get(name, {}))
    both = len({row.way.disable_p2p for row in rows}) > 1
    for row in rows:
        below = both and not row.way.disable_p2p
        ratio = "" if row.floor_ratio is None else f" ({row.floor_ratio:.2f}x)"
        axes.annotate(
            f"{row.p50_ms:.3g}{ratio}",
            (row.shape.ep, row.p50_ms),
            xytext=(0, -15 if below else 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.margins(x=0.12, y=0.15)


def _title(rows: Sequence[Row]) -> str:
    shape = rows[0].shape
    tokens = "/".join(str(number) for number in sorted({row.shape.tokens for row in rows}))
    return (
        f"{tokens} tokens a rank, hidden {shape.hidden}, top-{shape.topk} of {shape.experts} "
        f"experts, {shape.dtype} dispatch, bf16 combine; in brackets: multiples of the floor"
    )
