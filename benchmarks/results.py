"""From measured times to the rows that the table, the JSON file and the plot show."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deep_ll
from benchmarks.contestants import FLOORS, PRODUCTS
from benchmarks.harness import Measurement
from benchmarks.ways import Way, way_of
from benchmarks.workload import OPS, Shape

LABELS = {
    "dispatch": "dispatch",
    "combine": "combine, push",
    "combine_zero_copy": "combine, zero-copy",
    "pair": "dispatch + combine",
}


@dataclass(frozen=True)
class Row:
    """One operation of one configuration."""

    op: str
    shape: Shape
    p50_ms: float
    p99_ms: float
    gbps: float  # per rank
    floor_ms: float | None
    peers_ms: dict[str, float]
    way: Way

    @property
    def floor_ratio(self) -> float | None:
        return None if self.floor_ms is None else self.p50_ms / self.floor_ms

    @property
    def peer_ratios(self) -> dict[str, float]:
        """How many times faster deep_ll is."""
        return {name: ms / self.p50_ms for name, ms in self.peers_ms.items()}

    def as_json(self, common: dict[str, Any]) -> dict[str, Any]:
        shape = self.shape
        return {
            "op": self.op,
            "ep": shape.ep,
            "tokens": shape.tokens,
            "hidden": shape.hidden,
            "topk": shape.topk,
            "experts": shape.experts,
            "dtype": shape.dtype,
            "ranks_per_node": shape.ranks_per_node,
            "wall_ms_p50": round(self.p50_ms, 4),
            "wall_ms_p99": round(self.p99_ms, 4),
            "gbps": round(self.gbps, 3),
            "floor_ms": None if self.floor_ms is None else round(self.floor_ms, 4),
            "floor_ratio": None if self.floor_ratio is None else round(self.floor_ratio, 3),
            "peers": {name: round(ratio, 2) for name, ratio in self.peer_ratios.items()},
            **self.way.as_json(self.op),
            **common,
        }


def rows_of(measurement: Measurement) -> list[Row]:
    """The rows of one configuration: for each way of deep_ll, in the order of OPS."""
    rows = []
    for name in PRODUCTS:
        if name in measurement.walls:
            way = way_of(name, measurement)
            rows += [_row(name, op, way, measurement) for op in OPS]
    return rows


def _row(product: str, op: str, way: Way, measurement: Measurement) -> Row:
    times = measurement.walls[product][op]
    p50, p99 = np.percentile(times, [50, 99])
    # Neither peers nor links have a combine without copies: their only one is what is left then.
    peer_op = "combine" if op == "combine_zero_copy" else op
    floor = measurement.floors.get(FLOORS[product], {})
    stores = floor.get(op, floor.get(peer_op, {}))
    peers = {
        name: statistics.median(walls[peer_op])
        for name, walls in measurement.walls.items()
        if name not in PRODUCTS
    }
    return Row(
        op=op,
        shape=measurement.shape,
        p50_ms=float(p50),
        p99_ms=float(p99),
        gbps=measurement.shape.wire_bytes(op) / float(p50) / 1e6,
        floor_ms=min(map(statistics.median, stores.values())) if stores else None,
        peers_ms=peers,
        way=way,
    )


def provenance(floor_kernels: str | None) -> dict[str, Any]:
    """Which machine, version and commit: the same for all rows of a run."""
    info = deep_ll.info()
    machine = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "cpu_level": info["cpu_level"],
        "floor_kernels": floor_kernels,
        "torch": torch.__version__,
    }
    return {"machine": machine, "version": info["version"], "commit": _commit()}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
