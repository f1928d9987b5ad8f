"""Names and places of arguments in DeepEP's versions and forks, and calls that only it has."""

import inspect
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import Case, make_inputs
from exchange import make_buffer, round_trip

import deep_ll
from deep_ll import arguments
from deep_ll.arguments import Late
from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_same_bits

CASE = Case(world=2, experts=4, tokens=3, max_tokens=4, hidden=128, topk=2)
ALONE = replace(CASE, world=1)
SIZES = {"max_tokens_per_rank": 4, "hidden": 128, "num_experts": 4}
TIMEOUT_S = 20.0

# In DeepEP's order, which a caller may use by position.
PLACES = {
    "__init__": "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank "
    "allow_nvlink_for_low_latency_mode allow_mnnvl",
    "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
    "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats use_fp8 round_scale "
    "use_ue8m0 async_finish return_recv_hook",
    "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish "
    "return_recv_hook out combine_wait_recv_cost_stats",
    "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank hidden num_ranks "
    "num_experts",
    "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank hidden num_experts",
    "get_next_low_latency_combine_buffer": "handle",
    "get_local_buffer_tensor": "dtype size offset use_rdma_buffer",
}


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    parameters = inspect.signature(getattr(deep_ll.Buffer, name)).parameters.values()
    places = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.name != "self"]
    assert places == PLACES[name].split()


class Communicator:
    def __repr__(self) -> str:
        return "comm"  # the same name of a test in each process


COMM = Communicator()
READINGS = [
    ((), Late(explicitly_destroy=True), Late(explicitly_destroy=True), False),
    ((False,), Late(), Late(explicitly_destroy=False), False),
    ((True,), Late(), Late(explicitly_destroy=True), True),
    ((True,), Late(explicitly_destroy=False), Late(True, explicitly_destroy=False), False),
    ((True, False, COMM), Late(), Late(None, True, False, COMM), False),
    ((False, True, False, COMM), Late(), Late(False, True, False, COMM), False),
    ((True, False, None), Late(), Late(None, True, False, None), False),
    ((False, True), Late(comm=COMM), Late(None, False, True, COMM), True),
    ((True, True, False, None), Late(), Late(True, True, False, None), False),
]


@pytest.mark.parametrize(("positional", "keywords", "meant", "warned"), READINGS, ids=str)
def test_late_arguments(
    positional: tuple[object, ...], keywords: Late, meant: Late, warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert arguments.late(positional, keywords) == meant
    assert [("use_fabric" in str(w.message)) for w in caught] == [True] * warned


@pytest.mark.parametrize(
    ("positional", "keywords"),
    [((1, 2, 3, 4, 5), Late()), ((COMM,), Late()), ((True, True), Late(enable_shrink=True))],
    ids=str,
)
def test_late_arguments_of_no_version(positional: tuple[object, ...], keywords: Late) -> None:
    if len(positional) == 2:
        keywords = keywords._replace(explicitly_destroy=True)
    with pytest.raises(TypeError, match="use_fabric, explicitly_destroy, enable_shrink, comm"):
        arguments.late(positional, keywords)


def constructed(group: Any, change: dict[str, Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buf = deep_ll.Buffer(group, **SIZES | change)
        assert (buf.rank, buf.group_size, buf.group) == (group.rank, group.size, group)
        assert (buf.low_latency_mode, buf.enable_shrink, buf.comm) == (True, False, None)
        assert buf.num_nvl_bytes == change.get("num_nvl_bytes", 0)
        assert buf.num_rdma_bytes > 0
        assert buf.nvshmem_qp_depth == 1024
        assert buf.explicitly_destroy == change.get("explicitly_destroy", False)
        assert buf.runtime is not None
        assert buf.runtime.is_available()
        assert not buf.runtime.is_internode_available()
        assert buf.runtime.get_local_device_id() == -1
        assert isinstance(buf.get_comm_stream(), torch.cpu.Stream)
        round_trip(buf, ALONE, 0)
        buf.destroy()
        assert buf.runtime is None
    return [str(warning.message) for warning in caught]


VLLM = {
    "num_nvl_bytes": 1 << 30, "num_qps_per_rank": 2, "allow_nvlink_for_low_latency_mode": True,
    "allow_mnnvl": True, "explicitly_destroy": True, "low_latency_mode": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [VLLM, {"use_fabric": True, "eager_support": False}, {"allow_nvlink_traffic": True, **VLLM}],
)
def test_constructor_takes(change: dict[str, Any]) -> None:
    assert run_ranks(1, constructed, change, timeout_s=TIMEOUT_S) == [[]]


def test_deepeps_argument_against_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHMEM_DISABLE_P2P", "1")
    ((text,),) = run_ranks(1, constructed, VLLM, timeout_s=TIMEOUT_S)
    assert "allow_nvlink_for_low_latency_mode=True contradicts NVSHMEM_DISABLE_P2P=1" in text


REFUSED = [
    (
        {"allow_nvlink_traffic": True, "allow_nvlink_for_low_latency_mode": False},
        deep_ll.ArgumentError,
        ("allow_nvlink_traffic=True", "allow_nvlink_for_low_latency_mode=False"),
    ),
    ({"eager_support": True}, deep_ll.ArgumentError, ("eager_support", "fork")),
    ({"max_token_per_rank": 3}, TypeError, ("max_token_per_rank",)),
    ({"group": None, "comm": 3}, deep_ll.ArgumentError, ("comm", "int", "mpi4py")),
    ({"group": None}, ValueError, ("group", "comm")),
]


def refused(call: Any, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(("change", "error", "words"), REFUSED, ids=str)
def test_constructor_refuses(
    change: dict[str, Any], error: type[Exception], words: tuple[str, ...]
) -> None:
    def construct(group: Any) -> None:
        refused(lambda: deep_ll.Buffer(**{"group": group, **SIZES, **change}), error, words)

    run_ranks(1, construct, timeout_s=TIMEOUT_S)


def foreign_keywords(group: Any) -> None:
    with make_buffer(group, ALONE) as buf:
        mine = make_inputs(ALONE, 0)[0]
        args: tuple[Any, ...] = (mine.x, mine.topk_idx, CASE.max_tokens, CASE.experts)
        tables = {"low_latency_dispatch": arguments.DISPATCH}
        tables["low_latency_combine"] = arguments.COMBINE
        for name, table in tables.items():
            call = getattr(buf, name)
            for keyword, foreign in table.items():
                wish: Any = mine.x if foreign.default is None else 7
                words = (name, keyword, foreign.instead)
                refused(lambda: call(*args, **{keyword: wish}), deep_ll.ArgumentError, words)  # noqa: B023
            refused(lambda: call(*args, use_fp9=True), TypeError, (name, "use_fp9"))  # noqa: B023
            defaults = {keyword: foreign.default for keyword, foreign in table.items()}
            results = call(*args, **defaults)
            recv_x, _, handle, _, _ = results if len(results) == 5 else (None,) * 5
            x = torch.zeros(4, 4, 128, dtype=torch.bfloat16) if recv_x is not None else None
            args = (x, mine.topk_idx, mine.topk_weights, handle)


def test_keywords_of_forks() -> None:
    run_ranks(1, foreign_keywords, timeout_s=TIMEOUT_S)


def by_position(group: Any) -> None:
    """DeepEP's calls with nothing named give what ours with everything named do."""
    with make_buffer(group, CASE) as buf:
        mine = make_inputs(CASE, 0)[buf.rank]
        stats = torch.zeros(2, dtype=torch.int32)
        sizes = (CASE.max_tokens, CASE.experts)
        formats = {"use_fp8": True, "round_scale": True, "use_ue8m0": True}
        x, count, handle, _, hook = buf.low_latency_dispatch(
            mine.x, mine.topk_idx, *sizes, stats, None, True, True, True, False, True
        )
        assert hook is not None
        hook()
        assert stats.tolist() == count.tolist()
        named = buf.low_latency_dispatch(mine.x, mine.topk_idx, *sizes, **formats)
        rows = [slice(int(n)) for n in count]
        for part, other in zip(x, named[0], strict=True):
            for e, filled in enumerate(rows):
                assert_same_bits(part[e, filled], other[e, filled], "received")
        outputs = torch.randn(2, 8, 128).bfloat16()
        out = torch.empty_like(mine.x)
        tensors = (outputs, mine.topk_idx, mine.topk_weights)
        y, _, hook = buf.low_latency_combine(*tensors, handle, False, False, False, True, out, None)
        assert hook is not None
        hook()
        assert y is out
        assert_same_bits(y, buf.low_latency_combine(*tensors, named[2])[0], "combined")


@pytest.mark.filterwarnings("ignore:return_recv_hook=True")
def test_calls_by_position() -> None:
    run_ranks(2, by_position, timeout_s=TIMEOUT_S)


def test_a_communicator_of_mpi() -> None:
    """An MPI job of one rank."""
    mpi = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    with deep_ll.Buffer(comm=mpi.COMM_SELF, max_tokens_per_rank=4, hidden=128, num_experts=4) as b:
        assert (b.rank, b.group_size, b.group, b.comm) == (0, 1, None, mpi.COMM_SELF)
        round_trip(b, ALONE, 0)


def lets_its_memory_be_zeroed(group: Any) -> None:
    with make_buffer(group, CASE) as buf:
        for round_idx in range(3):
            (_, _, handle), _ = round_trip(buf, CASE, round_idx)
            group.all_gather(None)
            raw = buf.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
            assert raw.numel() > buf.num_rdma_bytes // 2
            raw.zero_()
            mine = make_inputs(CASE, round_idx)[buf.rank]
            x = torch.zeros(2, 8, 128, dtype=torch.bfloat16)
            args = (x, mine.topk_idx, mine.topk_weights, handle)
            refused(
                lambda: buf.low_latency_combine(*args),  # noqa: B023
                deep_ll.OrderError,
                ("too old", "get_local_buffer_tensor"),
            )
            group.all_gather(None)
        few = buf.get_local_buffer_tensor(torch.bfloat16, torch.Size((3, 5)), 64, True)
        assert few.shape == (3, 5)
        assert few.data_ptr() == raw.data_ptr() + 64
        refused_views(buf, raw.numel())


def refused_views(buf: deep_ll.Buffer, num_bytes: int) -> None:
    get, error = buf.get_local_buffer_tensor, deep_ll.ArgumentError
    refused(lambda: get(torch.int8), error, ("use_rdma_buffer=True",))
    refused(lambda: get(torch.int8, None, 3, True), error, ("3", "64"))
    refused(lambda: get(torch.int8, None, num_bytes + 64, True), error, (str(num_bytes),))
    refused(lambda: get(torch.int32, (num_bytes,), 0, True), error, (str(num_bytes // 4),))
    refused(lambda: get(torch.int32, (-1, -1), 0, True), error, ("-1",))
    mine = make_inputs(CASE, 0)[buf.rank]
    *_, hook = buf.low_latency_dispatch(
        mine.x, mine.topk_idx, CASE.max_tokens, CASE.experts, return_recv_hook=True
    )
    words = ("dispatch #", "hook")
    refused(lambda: get(torch.int8, use_rdma_buffer=True), deep_ll.OrderError, words)
    assert hook is not None
    hook()


@pytest.mark.filterwarnings("ignore:return_recv_hook=True")
def test_local_buffer_tensor() -> None:
    run_ranks(2, lets_its_memory_be_zeroed, timeout_s=TIMEOUT_S)


def no_memory(group: Any) -> None:
    with deep_ll.Buffer(group, num_rdma_bytes=1 << 44) as buf:
        with pytest.raises(deep_ll.HeapMemoryError):
            buf.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
        assert buf.get_local_buffer_tensor(torch.int8, (100,), 0, True).shape == (100,)


def test_local_buffer_tensor_that_would_not_fit() -> None:
    run_ranks(1, no_memory, timeout_s=TIMEOUT_S)


NORMAL = [
    "get_dispatch_config", "get_combine_config", "get_dispatch_layout", "dispatch", "combine",
    "internode_dispatch", "internode_combine",
]  # fmt: skip


def normal_mode(group: Any) -> None:
    with make_buffer(group, ALONE) as buf:
        for name in NORMAL:
            words = (f"Buffer.{name}", "normal mode", "low_latency_dispatch")
            refused(lambda: getattr(buf, name)(8), NotImplementedError, words)  # noqa: B023


def test_normal_mode() -> None:
    run_ranks(1, normal_mode, timeout_s=TIMEOUT_S)
    with pytest.raises(deep_ll.NormalModeError, match="Config"):
        deep_ll.Config(20, 6, 256)


def test_num_sms_of_normal_mode() -> None:
    assert deep_ll.Buffer.num_sms == 20
    deep_ll.Buffer.set_num_sms(24)
    try:
        assert deep_ll.Buffer.num_sms == 24
        refused(lambda: deep_ll.Buffer.set_num_sms(3), deep_ll.ArgumentError, ("3", "even"))
    finally:
        deep_ll.Buffer.set_num_sms(20)


def test_events() -> None:
    """As DeepEP's users make and pass them; without a GPU there is nothing to wait for."""
    tensors = [torch.zeros(1)]
    made = deep_ll.EventOverlap(deep_ll.EventHandle(), tensors)
    for event in (deep_ll.Buffer.capture(), made):
        with event as same:
            assert same is event
        event.current_stream_wait()
        assert event.event is not None
    assert made.extra_tensors is tensors
    made.current_stream_wait(release_handle=True)
    assert made.event is made.extra_tensors is None
    made.current_stream_wait()
    assert isinstance(deep_ll.Buffer.is_sm90_compiled(), bool)
