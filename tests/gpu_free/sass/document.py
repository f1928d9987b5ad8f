"""The tables of docs/gpu.md that follow from the table of kernels and from what a row weighs.

`python tests/gpu_free/sass/document.py --write` brings the file up to date.
"""

import re
import sys
from pathlib import Path

if __name__ == "__main__":
    folders = Path(__file__).resolve().parents
    sys.path[:0] = [str(folders[1]), str(folders[3])]

from deep_ll import _native
from sass import hot, occupancy, table, tools

FILE = tools.ROOT / "docs" / "gpu.md"
TIERS = ("h7168", "any")
THREADS, WARPS = 512, 16
TOKENS, HIDDEN, TOPK, RANKS, EXPERTS = 128, 7168, 8, 8, 256
NVLINK, HBM = 371e9, 3.35e12  # bytes/s of an H100: measured one way; as its maker says


def shape(fp8: bool) -> _native.Shape:
    """The exchange that the floors are for."""
    return _native.Shape(RANKS, 0, EXPERTS, TOKENS, HIDDEN, TOPK, int(fp8))


def markdown(head: list[str], rows: list[list[object]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def kernels() -> str:
    """What each kernel takes, and how many blocks of it fit."""
    kept = table.read()["tiers"]
    dynamic = _native.Launches.shared_bytes(shape(True), WARPS)
    rows: list[list[object]] = []
    for kernel in ("dispatch", "combine", "credit"):
        for tier in TIERS:
            for gpu in occupancy.GPUS:
                use = kept[tier][kernel][gpu.arch]
                block = occupancy.Block(THREADS, use["registers"], use["shared"] + dynamic)
                fit = occupancy.blocks(gpu, block)
                names = [kernel, tier, gpu.arch, use["registers"], use["instructions"]]
                rows.append([*names, use["shared"], dynamic, f"{fit} ({gpu.name})"])
    head = ["kernel", "rows", "code for", "registers", "instructions", "static shared"]
    return markdown([*head, "dynamic shared", "blocks on a multiprocessor"], rows)


def loops() -> str:
    """Issue cycles of the hot loops."""
    kept = table.read()["tiers"]["h7168"]
    rows: list[list[object]] = []
    for kernel, found in hot.LOOPS.items():
        for loop in found:
            counts = [kept[kernel][gpu.arch].get(f"cycles of {loop}") for gpu in occupancy.GPUS]
            rows.append([kernel, loop, *counts])
    return markdown(["kernel", "one turn of", *(gpu.arch for gpu in occupancy.GPUS)], rows)


def _micro(num_bytes: float, rate: float) -> str:
    return f"{num_bytes / rate * 1e6:.1f}"


def floors() -> str:
    """The least that each phase moves, and how long that takes."""
    choices = TOKENS * TOPK
    out = choices * (RANKS - 1) // RANKS  # of all choices, if they are spread evenly
    token = HIDDEN * 2
    rows: list[list[object]] = []
    for name, fp8 in (("FP8", True), ("BF16", False)):
        of = shape(fp8)
        # Of a label only what is used travels: scales, then eight bytes of origin, by 16.
        label = -(-(of.scale_words * 4 + 8) // 16) * 16
        row = of.row_bytes + label
        memory = TOKENS * token + choices * row
        rows.append([f"dispatch, {name}", f"{of.row_bytes} + {label}", out * row, memory])
    scales = shape(True).scale_words * 4
    rows.append(["unpack, FP8", f"{scales} twice", 0, choices * (2 * scales + 16)])
    rows.append(["combine, push", token, out * token, 2 * choices * token])
    rows.append(["combine, gather", token, 0, (choices + TOKENS) * token])
    rows.append(["combine, pulled", token, out * token, (choices + TOKENS) * token])
    cells = [
        [
            what,
            each,
            f"{link / 1e6:.2f}",
            _micro(link, NVLINK),
            f"{hbm / 1e6:.2f}",
            _micro(hbm, HBM),
        ]
        for what, each, link, hbm in rows
    ]
    head = ["phase", "bytes a choice", "MB out", "us at 371 GB/s", "MB of memory"]
    return markdown([*head, "us at 3.35 TB/s"], cells)


TABLES = {"kernels": kernels, "loops": loops, "floors": floors}


def filled(text: str) -> str:
    """`text` with each table between its marks made anew."""
    for name, make in TABLES.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(
            marks, lambda m, make=make: m[1] + make() + "\n" + m[2], text, flags=re.DOTALL
        )
    return text


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(filled(FILE.read_text(encoding="utf-8")), encoding="utf-8")
