"""The floor of ranks that reach each other by the link: the same bytes by UCX alone."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch

from benchmarks.floor import HERE, FloorProgram, compiled
from benchmarks.workload import Inputs, Shape

FLAGS = ("-O3", "-march=native", "-std=c++20", "-pthread")


def build() -> Path:
    """The program, against the UCX that deep_ll loads."""
    places: list[str] = []
    package = importlib.util.find_spec("libucx")
    for folder in (package.submodule_search_locations if package else None) or ():
        places += [f"-I{folder}/include", f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib"]
    headers = sorted(HERE.glob("link_*.hpp"))
    return compiled(HERE / "link_floor.cpp", headers, [*FLAGS, *places, "-lucp", "-lucs"])


class LinkFloor(FloorProgram):
    """Rows of the inputs' routing: by UCX between nodes, by memcpy within them."""

    def __init__(self, shape: Shape, inputs: Inputs, ranks_per_node: int) -> None:
        # What users set for their own UCX is not for the floor, as it is not for deep_ll.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UCX_")}
        super().__init__([str(build()), "--job"], env=environment)
        numbers = [shape.ep, ranks_per_node, shape.dispatched_bytes, 2 * shape.hidden]
        self._ask(" ".join(map(str, numbers + _rows(shape, inputs))))


def _rows(shape: Shape, inputs: Inputs) -> list[int]:
    """How many from each rank to each."""
    owners = inputs.topk_idx.tensor // shape.local_experts
    sources = torch.arange(shape.ep).view(-1, 1, 1)
    pairs = (sources * shape.ep + owners).flatten()
    counts: list[int] = torch.bincount(pairs, minlength=shape.ep**2).tolist()
    return counts
