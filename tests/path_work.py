"""What the ranks of test_paths.py do."""

import time
import warnings
from typing import Any, NamedTuple

import torch.distributed as dist
from cases import Case
from exchange import make_buffer, round_trip
from orders import Batch
from topologies import Topology, environment, make_linked_buffer

import deep_ll


class Chosen(NamedTuple):
    """What a rank saw."""

    kinds: list[str]
    reasons: list[str]
    warned: list[tuple[str, str]]  # text, file


def choose(group: Any, case: Case, topologies: list[Topology]) -> Chosen:
    """A buffer's paths, where each rank has its own topology; it works, and its plan is right."""
    own = topologies[dist.get_rank(group)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buf = make_linked_buffer(group, case, own)
    with buf:
        paths = buf.paths()
        assert [path.peer for path in paths] == list(range(case.world))
        paths.clear()  # a copy
        paths = buf.paths()
        plan = buf.plan()
        assert plan.num_bytes == buf.num_rdma_bytes == sum(part.num_bytes for part in plan.parts)
        assert plan.num_local_ranks == case.world
        round_trip(buf, case, 0)
    told = [(str(warning.message), warning.filename) for warning in caught]
    return Chosen([path.kind for path in paths], [path.reason for path in paths], told)


class Hooked(NamedTuple):
    """What calls with hooks gave."""

    errors: list[str]
    warned: list[str]


def use_hooks(group: Any, case: Case, topology: Topology) -> list[Hooked]:
    """Three calls with hooks on each of two buffers, or the error of each."""
    return [_use_hooks(group, case, topology) for _ in range(2)]


def _use_hooks(group: Any, case: Case, topology: Topology) -> Hooked:
    errors = []
    with make_linked_buffer(group, case, topology) as buf:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for round_idx in range(3):
                try:
                    round_trip(buf, case, round_idx)
                except ValueError as error:
                    errors.append(f"{type(error).__name__}: {error}")
        plain = Case(world=case.world, experts=case.experts)
        round_trip(buf, plain, 3)  # nothing was moved by what was refused
    for warning in caught:
        assert warning.category is UserWarning
        assert warning.filename.endswith("exchange.py")  # the caller of dispatch
    return Hooked(errors, [str(warning.message) for warning in caught])


def refused_combine(group: Any, case: Case) -> str:
    """A hook of a combine is a hook too."""
    with make_linked_buffer(group, Case(world=case.world), Topology(allow=True)) as buf:
        batch = Batch(buf, Case(world=case.world), 0)
        batch.dispatch()
        batch.receive()
        batch.case = case
        try:
            batch.combine()
        except deep_ll.ArgumentError as error:
            message = str(error)
        batch.case = Case(world=case.world)
        batch.combine()
        batch.reduce()
    return message


def without_library(
    group: Any, case: Case, topology: Topology, only_on: int | None
) -> tuple[str, str, float]:
    """The error of making a buffer where UCX is not found, on one rank or all."""
    here = only_on is None or dist.get_rank(group) == only_on
    lost = {"DEEP_LL_LIBUCP": "/nowhere/libucp.so.0"} if here else {}
    start = time.monotonic()
    try:
        with environment(topology.variables() | lost):
            make_buffer(group, case, allow_nvlink_traffic=topology.allow)
    except deep_ll.DeepLLError as error:
        told = type(error).__name__, str(error), time.monotonic() - start
    else:
        told = "", "", 0.0
    with make_buffer(group, case) as buf:  # the group is as before
        round_trip(buf, case, 0)
    return told


def thread_rank(group: Any, case: Case, allow: bool | None) -> str:
    try:
        buf = make_buffer(group, case, allow_nvlink_traffic=allow)
    except deep_ll.LinkUnavailable as error:
        return str(error)
    with buf:
        round_trip(buf, case, 0)
        return ",".join(path.kind for path in buf.paths())
