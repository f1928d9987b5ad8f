"""A group of ranks, as far as setting up a buffer needs one: gather small values, meet."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import torch.distributed as dist

from deep_ll.errors import ArgumentError

T = TypeVar("T")


@runtime_checkable
class Group(Protocol):
    """What deep_ll asks of a group. Used while a buffer is made, never in a dispatch or a
    combine.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def in_process(self) -> bool:
        """Whether the ranks are threads of this process."""

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective."""


class TorchGroup:
    """Ranks of a torch.distributed process group. Buffers on CPUs need a CPU backend in it (gloo);
    for those on GPUs nccl is enough, which gathers by the current GPU of each rank.

    Attributes:
        backends: names of its backends, as far as torch says.
    """

    in_process = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        named = hasattr(group, "_get_backend_name")
        self.backends = {str(group._get_backend_name())} if named else set()
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values


@runtime_checkable
class _Communicator(Protocol):
    """What is asked of mpi4py."""

    def Get_rank(self) -> int:
        """This rank."""

    def Get_size(self) -> int:
        """How many ranks there are."""

    def allgather(self, value: T) -> list[T]:
        """Every rank's value."""


class MpiGroup:
    """Ranks of an mpi4py communicator."""

    in_process = False

    def __init__(self, comm: _Communicator) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective."""
        return self._comm.allgather(value)


def require_cpu_backend(group: Group) -> None:
    """Raises where buffers on CPUs cannot be made over a group.

    Raises:
        ArgumentError: it has no CPU backend.
    """
    if isinstance(group, TorchGroup) and group.backends == {"nccl"}:
        raise ArgumentError(
            "this group has only the backend nccl; deep_ll on CPUs needs gloo: "
            "dist.new_group(backend='gloo')"
        )


def as_group(group: object, comm: object = None) -> Group:
    """The group as deep_ll sees it. `comm`: an mpi4py communicator, for callers without `group`.

    Raises:
        ArgumentError: it is neither a process group that this rank belongs to nor a group of
            deep_ll, nor is there a communicator instead.
    """
    if group is None and comm is not None:
        if not isinstance(comm, _Communicator):
            raise ArgumentError(
                f"comm is a {type(comm).__name__}: it must be a communicator of mpi4py, like "
                "MPI.COMM_WORLD"
            )
        return MpiGroup(comm)
    if group is None:
        raise ArgumentError(
            "Buffer needs a group: pass torch.distributed.group.WORLD or one made by "
            "dist.new_group(), or comm=MPI.COMM_WORLD"
        )
    if isinstance(group, dist.ProcessGroup):
        return TorchGroup(group)
    if isinstance(group, Group):
        return group
    raise ArgumentError(
        f"{type(group).__name__} is not a group that this rank belongs to: pass a "
        f"torch.distributed ProcessGroup"
    )
