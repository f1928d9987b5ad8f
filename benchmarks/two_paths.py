"""What it brings to map memory: each operation over the link alone, and with P2P in each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.results import LABELS, Row

SETTING = "NVSHMEM_DISABLE_P2P"
HEADER = (
    "EP",
    "operation",
    "ms, 1 -> 0",
    "faster",
    "GB/s, 1 -> 0",
    "x floor, 1 -> 0",
    "MB, p2p + link",
)
HOOK_HEADER = ("EP", "operation", "path", "send ms", "receive ms", "matmul ms", "hidden")

Pair = tuple[Row, Row]  # over the link alone, and with P2P


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """The operations that were measured both ways."""
    linked = {(row.shape.ep, row.op): row for row in rows if row.way.disable_p2p}
    mapped = [row for row in rows if not row.way.disable_p2p]
    keys = [(row.shape.ep, row.op) for row in mapped]
    return [(linked[key], row) for key, row in zip(keys, mapped, strict=True) if key in linked]


def as_json(rows: Sequence[Row], common: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows; those with P2P say how many times faster that makes them, where it is known."""
    faster = {id(p2p): round(link.p50_ms / p2p.p50_ms, 3) for link, p2p in pairs_of(rows)}
    return [row.as_json(common) | {"improvement": faster.get(id(row))} for row in rows]


def render(rows: Sequence[Row], common: dict[str, Any]) -> str:
    """Tables in Markdown, ready to be pasted; "" without anything to compare."""
    pairs = pairs_of(rows)
    if not pairs:
        return ""
    text = [f"{SETTING}=1 -> 0, {_nodes(pairs[0][1])}:", ""]
    text += _table(HEADER, [_cells(*pair) for pair in pairs])
    hooks = [row for row in rows if row.op in row.way.hooks]
    if hooks:
        text += ["", "Hook mode, and what a product as long as the receiving hides of it:", ""]
        text += _table(HOOK_HEADER, [_hook_cells(row) for row in hooks])
    return "\n".join([*text, "", _measured(pairs[0][0], common)])


def _nodes(row: Row) -> str:
    size = row.shape.ranks_per_node
    return f"nodes of {size} ranks" if size else "one node"


def _measured(row: Row, common: dict[str, Any]) -> str:
    shape, machine = row.shape, common["machine"]
    return (
        f"Measured on {machine['cores']} cores of {machine['cpu']} (all ranks on one machine), "
        f"Linux {machine['kernel']}, {row.way.transport}; {shape.tokens} tokens a rank, "
        f"hidden {shape.hidden}, top-{shape.topk} of {shape.experts}, {shape.dtype} dispatch; "
        f"medians; deep_ll {common['version']}, {(common['commit'] or 'no commit')[:9]}"
    )


def _cells(linked: Row, mapped: Row) -> list[str]:
    way = mapped.way
    return [
        str(mapped.shape.ep),
        LABELS[mapped.op],
        f"{_short(linked.p50_ms)} -> {_short(mapped.p50_ms)}",
        f"{linked.p50_ms / mapped.p50_ms:.2f}x",
        f"{linked.gbps:.2f} -> {mapped.gbps:.2f}",
        f"{_ratio(linked)} -> {_ratio(mapped)}",
        f"{_short(way.p2p_bytes[mapped.op] / 1e6)} + {_short(way.link_bytes[mapped.op] / 1e6)}",
    ]


def _hook_cells(row: Row) -> list[str]:
    hidden = row.way.hooks[row.op]
    return [
        str(row.shape.ep),
        LABELS[row.op],
        row.way.path,
        _short(hidden.send_ms),
        _short(hidden.receive_ms),
        _short(hidden.matmul_ms),
        f"{hidden.share:.0%}",
    ]


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _ratio(row: Row) -> str:
    return "-" if row.floor_ratio is None else f"{row.floor_ratio:.2f}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    text = [_line(header, widths), _line(["-" * width for width in widths], widths)]
    return [*text, *(_line(line, widths) for line in lines)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"| {' | '.join(padded)} |"
