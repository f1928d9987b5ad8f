"""deep_ll.compat.deep_ep: the name comes and goes as asked, and DeepEP's rules hold under it."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case, make_inputs

import deep_ll
import deep_ll.compat.deep_ep as compat
from deep_ll import reference
from deep_ll.compat.deep_ep import environment
from deep_ll.testing import run_ranks

# What programs import: vLLM, SGLang, Megatron, DeepEP's tests of versions 1 and 2.
EVENTS = ("EventHandle", "EventOverlap")
HELPERS = ("calc_diff", "hash_tensor", "per_token_cast_back", "per_token_cast_to_fp8")
MACHINE = ("check_nvlink_connections", "check_torch_deterministic", "init_dist")
NAMES = {
    "deep_ep": ("Buffer", "Config", "EventOverlap", "topk_idx_t"),
    "deep_ep.buffer": ("Buffer", "Config", *EVENTS),
    "deep_ep.buffers.legacy": ("Buffer", "Config", *EVENTS),
    "deep_ep.utils": (*EVENTS, *HELPERS, *MACHINE, "bench", "bench_kineto"),
    "deep_ep.utils.envs": MACHINE,
    "deep_ep.utils.event": EVENTS,
    "deep_ep.utils.math": HELPERS,
    "deep_ep.utils.testing": ("bench", "bench_kineto"),
}
ROOT = Path(__file__).parent.parent
CASE = Case(world=2, experts=4, tokens=5, max_tokens=8, topk=2)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    compat.uninstall()
    os.environ.clear()
    os.environ.update(before)


def real_deep_ep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("deep_ep")
    module.__file__ = "/opt/deep_ep/__init__.py"
    monkeypatch.setitem(sys.modules, "deep_ep", module)
    return module


def test_only_after_install() -> None:
    assert importlib.util.find_spec("deep_ep") is None
    module = compat.install()
    assert compat.install() is module is sys.modules["deep_ep"]
    assert importlib.util.find_spec("deep_ep") is not None  # how vLLM asks
    assert module.__version__.endswith(deep_ll.__version__)
    compat.uninstall()
    compat.uninstall()
    assert [name for name in sys.modules if name.split(".")[0] == "deep_ep"] == []
    assert compat.path() not in sys.path
    with pytest.raises(ImportError):
        importlib.import_module("deep_ep")


@pytest.mark.parametrize("module", NAMES)
def test_names(module: str) -> None:
    compat.install()
    loaded = importlib.import_module(module)
    for name in NAMES[module]:
        assert getattr(loaded, name).__module__.startswith(("deep_ll.", "torch"))  # not a copy
        assert name in loaded.__all__


def test_submodules_come_with_the_import() -> None:
    deep_ep = compat.install()
    assert deep_ep.Buffer is deep_ep.buffers.legacy.Buffer is compat.Buffer
    assert deep_ep.utils.EventOverlap is deep_ep.EventOverlap is deep_ll.EventOverlap
    assert deep_ep.topk_idx_t is torch.int64
    for missing in ("ElasticBuffer", "HybridEPBuffer"):
        assert not hasattr(deep_ep, missing)


def test_refuses_beside_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = real_deep_ep(monkeypatch)
    with pytest.raises(deep_ll.OrderError, match=r"/opt/deep_ep/__init__\.py.*before anything"):
        compat.install()
    assert compat.path() not in sys.path
    compat.uninstall()
    assert sys.modules["deep_ep"] is module


def in_spawned_process(port: int, answers: Any) -> None:
    import deep_ep
    from deep_ep.utils import init_dist

    os.environ["MASTER_PORT"] = str(port)
    rank, size, group = init_dist(0, 1)
    answers.put((deep_ep.Buffer.__module__, rank, size, group.size(), torch.get_default_dtype()))
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(120)
def test_spawned_processes_have_it() -> None:
    compat.install()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=in_spawned_process, args=(port, answers))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    expected = ("deep_ll.compat.deep_ep.buffer", 0, 1, 1, torch.bfloat16)
    assert answers.get() == expected


@pytest.mark.timeout(120)
def test_program_that_knows_nothing_of_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from deep_ep import Buffer; print(Buffer.__module__)"],
        env={**os.environ, "PYTHONPATH": f"{compat.path()}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.stdout == "deep_ll.compat.deep_ep.buffer\n", run.stderr


WRITTEN = {
    "NVSHMEM_DISABLE_P2P": "0",
    "NVSHMEM_IB_ENABLE_IBGDA": "1",
    "NVSHMEM_IBGDA_NUM_RC_PER_PE": "24",
    "NVSHMEM_QP_DEPTH": "1024",
    "NVSHMEM_MAX_TEAMS": "7",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_CUMEM_GRANULARITY": "536870912",
    "NVSHMEM_DISABLE_MNNVL": "1",
}


@pytest.mark.parametrize(
    ("before", "allow_nvlink", "disable_p2p", "warned"),
    [
        (None, None, "0", False),
        (None, True, "0", False),
        (None, False, "1", False),
        ("1", None, "1", False),
        ("1", True, "0", True),
        ("0", False, "1", True),
        ("0", True, "0", False),
    ],
)
def test_environment(
    before: str | None, allow_nvlink: bool | None, disable_p2p: str, warned: bool
) -> None:
    for name in WRITTEN:
        os.environ.pop(name, None)
    os.environ |= {"NVSHMEM_MAX_TEAMS": "3", "NVSHMEM_QP_DEPTH": "2048"}
    if before is not None:
        os.environ["NVSHMEM_DISABLE_P2P"] = before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        environment.write(9, allow_nvlink, allow_mnnvl=False)
    changed = {
        "NVSHMEM_DISABLE_P2P": disable_p2p,
        "NVSHMEM_IBGDA_NUM_RC_PER_PE": "9",
        "NVSHMEM_QP_DEPTH": "2048",
    }
    assert {name: os.environ[name] for name in WRITTEN} == WRITTEN | changed
    assert [f"NVSHMEM_DISABLE_P2P={before}" in str(w.message) for w in caught] == [True] * warned


def test_environment_with_nvlink_between_hosts() -> None:
    os.environ.pop("NVSHMEM_DISABLE_MNNVL", None)
    environment.write(1, True, allow_mnnvl=True)
    assert "NVSHMEM_DISABLE_MNNVL" not in os.environ


def open_buffer(group: Any, **options: Any) -> Any:
    num_bytes = compat.Buffer.get_low_latency_rdma_size_hint(
        CASE.max_tokens, CASE.hidden, CASE.world, CASE.experts
    )
    return compat.Buffer(group, 0, num_bytes, True, 2, **options)


def dispatched(buffer: Any, round_idx: int = 0) -> Any:
    mine = make_inputs(CASE, round_idx)[buffer.rank]
    sent = buffer.low_latency_dispatch(
        mine.x, mine.topk_idx, CASE.max_tokens, CASE.experts, use_fp8=False
    )
    return mine, sent[0], sent[2]


def combined(buffer: Any, mine: Any, rows: torch.Tensor, handle: Any) -> torch.Tensor:
    out, _, _ = buffer.low_latency_combine(rows.clone(), mine.topk_idx, mine.topk_weights, handle)
    return out


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, NotImplementedError, "low_latency_mode=True"),
        ({"low_latency_mode": False}, deep_ll.NormalModeError, "deepep_low_latency"),
        ({"low_latency_mode": True, "num_qps_per_rank": 0}, ValueError, "num_qps_per_rank is 0"),
        ({"low_latency_mode": True, "num_rdma_byte": 1}, TypeError, "num_rdma_byte"),
    ],
)
def test_constructor_refuses(options: dict[str, Any], error: type, text: str) -> None:
    os.environ.pop("NVSHMEM_MAX_TEAMS", None)

    def make(group: Any) -> Any:
        with pytest.raises(error, match=text):
            compat.Buffer(group, **options)
        return "NVSHMEM_MAX_TEAMS" in os.environ

    if error is not TypeError:  # that one is found by deep_ll's own constructor
        assert run_ranks(1, make) == [False]
    else:
        run_ranks(1, make)


def with_copies(group: Any, copier: Callable[[Any], Any]) -> None:
    with open_buffer(group) as buffer:
        mine, rows, handle = dispatched(buffer)
        assert type(handle) is tuple
        expected = combined(buffer, mine, rows, handle)
        assert torch.equal(combined(buffer, mine, rows, copier(handle)), expected)
        view = buffer.get_next_low_latency_combine_buffer(copier(handle))
        view[:] = rows
        out, _, _ = buffer.low_latency_combine(
            rows, mine.topk_idx, mine.topk_weights, handle=copier(handle), zero_copy=True
        )
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "copier",
    [lambda h: h, tuple, list, copy.copy, lambda h: h[:2] + h[2:], lambda h: (*h,)],
    ids=["itself", "tuple", "list", "copy", "slices", "unpacked"],
)
def test_copied_handles(copier: Callable[[Any], Any]) -> None:
    run_ranks(2, with_copies, copier)


def with_bad_handles(group: Any) -> None:
    other = open_buffer(group)
    with open_buffer(group) as buffer:
        mine, rows, first = dispatched(buffer)
        _, _, foreign = dispatched(other)
        travelled = pickle.loads(pickle.dumps(first))
        assert torch.equal(travelled[1], first[1])
        assert travelled[2:] == first[2:] == (CASE.max_tokens, CASE.hidden, CASE.experts)
        for bad in (travelled, copy.deepcopy(first), foreign):
            with pytest.raises(deep_ll.OrderError, match="not of the last two dispatches"):
                combined(buffer, mine, rows, bad)
        for bad in (None, first[:4], {}, "12345"):
            with pytest.raises(deep_ll.ArgumentError, match="handle is a"):
                combined(buffer, mine, rows, bad)
        # Held, and not combined: the second next dispatch takes their memory all the same.
        later = [dispatched(buffer, round_idx) for round_idx in (1, 2)]
        with pytest.raises(deep_ll.OrderError, match="not of the last two dispatches"):
            combined(buffer, mine, rows, first)
        for sent in later:
            combined(buffer, *sent)


def test_bad_handles() -> None:
    run_ranks(2, with_bad_handles)


def with_hooks(group: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for nvlink in (None, True):
            with open_buffer(group, allow_nvlink_for_low_latency_mode=nvlink) as buffer:
                mine = make_inputs(CASE, 0)[buffer.rank]
                sizes = (CASE.max_tokens, CASE.experts)
                sent = buffer.low_latency_dispatch(
                    mine.x, mine.topk_idx, *sizes, return_recv_hook=True
                )
                sent[-1]()
    return [str(warning.message) for warning in caught]


def test_hooks_beside_mapped_memory(pools: Any) -> None:
    # In processes: threads would share the filter of warnings.
    assert pools(2).run(in_own_environment, with_hooks) == [[], []]


def in_own_environment(group: Any, fn: Callable[[Any], Any]) -> Any:
    before = dict(os.environ)
    try:
        return fn(group)
    finally:
        os.environ.clear()
        os.environ.update(before)


def with_destroy(group: Any) -> None:
    buffer = open_buffer(group)
    with pytest.raises(AssertionError, match="explicitly_destroy=True"):
        buffer.destroy()
    dispatched(buffer)
    buffer = open_buffer(group, explicitly_destroy=True)
    buffer.destroy()
    assert buffer.runtime is None
    with pytest.raises(deep_ll.OrderError, match="destroyed"):
        dispatched(buffer)


def test_destroy() -> None:
    run_ranks(2, with_destroy)


def with_recovery(group: Any) -> None:
    """As vLLM zeroes the memory: signals are not in it."""
    with open_buffer(group) as buffer:
        for round_idx in range(3):
            mine, rows, handle = dispatched(buffer, round_idx)
            combined(buffer, mine, rows, handle)
            group.barrier()
            memory = buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True)
            memory.zero_()
            group.barrier()


def test_zeroed_memory() -> None:
    run_ranks(2, with_recovery)


def test_calc_diff() -> None:
    calc_diff = compat.install().utils.calc_diff
    x = torch.randn(100, 64)
    assert calc_diff(x, x) == pytest.approx(0, abs=1e-12)
    big = torch.full((10,), 1e3)
    assert calc_diff(big, big * 1.01) == pytest.approx(0.01**2 / 2, rel=0.05)
    assert calc_diff(torch.zeros(0), torch.zeros(0)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32])
@pytest.mark.parametrize("columns", [1, 3, 64])
def test_hash_tensor(dtype: torch.dtype, columns: int) -> None:
    hash_tensor = compat.install().utils.hash_tensor
    rows = torch.randint(1, 100, (20, columns)).to(dtype)
    shuffled = rows.float()[torch.randperm(20)].to(dtype)
    assert hash_tensor(shuffled) == hash_tensor(rows) == hash_tensor(rows.t().contiguous().t())
    changed = rows.float().clone()
    changed[7, -1] = 111
    assert hash_tensor(changed.to(dtype)) != hash_tensor(rows)
    assert hash_tensor(rows[:0]) == 0


@pytest.mark.parametrize("ue8m0", [False, True])
def test_casts(ue8m0: bool) -> None:
    utils = compat.install().utils
    x = torch.randn(8, 1024).bfloat16()
    q, scales = reference.quantize(x, round_scale=ue8m0, use_ue8m0=ue8m0)
    expected = reference.dequantize(q, scales).bfloat16()
    # DeepEP's test gives all scales in the shape of float32 ones, hidden / 128 in a row.
    assert torch.equal(utils.per_token_cast_back(q, scales.reshape(-1, 8)), expected)
    assert utils.per_token_cast_back(q[:0], scales[:0]).shape == (0, 1024)
    if not ue8m0:
        assert torch.equal(utils.per_token_cast_to_fp8(x)[0].view(torch.int8), q.view(torch.int8))


def test_check_torch_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    check = compat.install().utils.check_torch_deterministic
    check()
    # Switching it on would load half of torch.
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(AssertionError, match="fill_uninitialized_memory"):
        check()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    check()


def test_bench() -> None:
    calls: list[str] = []
    mean, least, most = compat.install().utils.bench(
        lambda: calls.append("fn"), 2, 5, post_fn=lambda: calls.append("post"), flush_l2=False
    )
    assert calls == ["fn"] * 2 + ["fn", "post"] * 5
    assert 0 <= least <= mean <= most < 1


def test_bench_kineto() -> None:
    """On CPUs operators stand for kernels."""
    bench_kineto = compat.install().utils.bench_kineto
    small, large = torch.ones(8, 8), torch.ones(512, 512)

    def work() -> None:
        small @ small
        large @ large
        small.exp()

    meetings: list[int] = []
    (first, second), exp = (
        bench_kineto(work, "aten::mm", 5, num_kernels_per_period=2),
        bench_kineto(
            work, ("aten::exp",), 5, barrier_comm_profiling=True, barrier=lambda: meetings.append(1)
        ),
    )
    assert 0 < first < second < 1
    assert 0 < exp[0] < 1
    assert len(meetings) == 5
    with pytest.raises(RuntimeError, match="saw 10 kernels"):
        bench_kineto(work, "aten::mm", 5)
