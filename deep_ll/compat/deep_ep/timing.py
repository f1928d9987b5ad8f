"""DeepEP's two ways to measure, for CPUs and GPUs."""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Times: TypeAlias = float | list[float]  # of a name's kernels, or of each in a call

_CACHE_BYTES = 256 << 20  # more than caches hold
_PROFILED = 30


def bench(
    fn: Callable[[], object],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], object] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Seconds that `fn` takes: mean, least, most of `num_tests` calls, the first left out.

    Args:
        post_fn: called after each call, not measured.
        flush_l2: fill the caches with other things before.
    """
    for _ in range(num_warmups):
        fn()
    if flush_l2:
        torch.empty(_CACHE_BYTES, dtype=torch.uint8).zero_()
    clock = _gpu_seconds if torch.cuda.is_available() else _cpu_seconds
    times = []
    for _ in range(num_tests):
        times.append(clock(fn))
        if post_fn is not None:
            post_fn()
    kept = times[1:] or times
    return fmean(kept), min(kept), max(kept)


def bench_kineto(
    fn: Callable[[], object],
    kernel_names: str | tuple[str, ...],
    num_tests: int = _PROFILED,
    *,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], object] | None = None,
    trace_path: str | None = None,
    suppress_kineto_output: bool = False,
    flush_l2: bool = True,
) -> Times | list[Times]:
    """Seconds that kernels take in `fn`, by torch's profiler; on CPUs, torch's operators.

    Args:
        kernel_names: part of a kernel's name, or several.
        num_tests: calls of `fn` that are looked at.
        barrier_comm_profiling: let ranks meet before each call, by `barrier` or an all-reduce.
        num_kernels_per_period: of each name in one call of `fn`.
        trace_path: where to write a Chrome trace.
        suppress_kineto_output, flush_l2: taken and unused.

    Returns:
        The mean of a name's kernels, or with `num_kernels_per_period` > 1 the mean of each in
        turn; a list of those for several names.

    Raises:
        RuntimeError: a name's kernels are not as many as there must be.
    """
    per_call = num_kernels_per_period
    activity = torch.profiler.ProfilerActivity
    on_gpu = torch.cuda.is_available()
    fn()  # what happens in a first call only
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profiler:
        for _ in range(num_tests):
            if barrier_comm_profiling:
                (barrier or _meet)()
            fn()
        if on_gpu:
            torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    events = sorted(profiler.events() or [], key=lambda event: event.time_range.start)
    shown = [
        _means([event for event in events if name in event.name], name, num_tests, per_call)
        for name in names
    ]
    return shown[0] if isinstance(kernel_names, str) else shown


def _means(events: Sequence[Any], name: str, num_calls: int, per_call: int) -> Times:
    if len(events) != num_calls * per_call:
        raise RuntimeError(
            f"bench_kineto saw {len(events)} kernels with {name!r} in their name, expected "
            f"{per_call} in each of {num_calls} calls"
        )
    seconds = [event.time_range.elapsed_us() / 1e6 for event in events]
    means = [fmean(seconds[turn::per_call]) for turn in range(per_call)]
    return means if per_call > 1 else means[0]


def _meet() -> None:
    dist.all_reduce(torch.ones(1, dtype=torch.float32))


def _cpu_seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def _gpu_seconds(fn: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    fn()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
