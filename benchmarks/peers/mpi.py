"""MPI's Alltoallv: the fastest all-to-all between processes that pip can install."""

from __future__ import annotations

import os
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.peers.common import AllToAllPeer
from benchmarks.workload import Job


class Mpi(AllToAllPeer):
    """One rank; `environments` are those that mpirun gave its processes, see mpi_launch.py."""

    def __init__(
        self, group: dist.ProcessGroup, job: Job, environments: list[dict[str, str]]
    ) -> None:
        os.environ.update(environments[group.rank()])
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        if (self.comm.Get_rank(), self.comm.Get_size()) != (group.rank(), group.size()):
            raise RuntimeError(f"MPI came up with {self.comm.Get_size()} ranks of {group.size()}")
        self.row_types: dict[int, Any] = {}
        super().__init__(group, job)

    def all_to_all(
        self, target: Tensor, source: Tensor, received: list[int], sent: list[int]
    ) -> None:
        row_type = self._row_type(source.shape[1] * source.element_size())
        self.comm.Alltoallv(
            [_bytes(source), (sent, _starts(sent)), row_type],
            [_bytes(target), (received, _starts(received)), row_type],
        )

    def close(self) -> None:
        for row_type in self.row_types.values():
            row_type.Free()
        self.mpi.Finalize()

    def _row_type(self, num_bytes: int) -> Any:
        if num_bytes not in self.row_types:
            row_type = self.mpi.BYTE.Create_contiguous(num_bytes)
            self.row_types[num_bytes] = row_type.Commit()
        return self.row_types[num_bytes]


def _bytes(tensor: Tensor) -> Any:
    return tensor.view(torch.uint8).numpy()


def _starts(sizes: list[int]) -> list[int]:
    return [0, *accumulate(sizes[:-1])]
