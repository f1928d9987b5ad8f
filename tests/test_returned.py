"""Shapes, dtypes, strides and types of everything the API returns: DeepEP's."""

import pickle

import pytest
import torch
from cases import CASTS, Case, make_inputs
from exchange import expect, make_buffer, mode_options, padded, send

import deep_ll
from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_received

CASE = Case(world=2, experts=6, tokens=5, max_tokens=8, hidden=640, topk=3)
EXPERTS_LOCAL, ROWS = 3, 16


def layout(tensor):
    return tuple(tensor.shape), tensor.dtype, tensor.stride()


def check_dispatch(group, cast):
    case = Case(**{**CASE.__dict__, "cast": cast})
    with make_buffer(group, case) as buf:
        mine = make_inputs(case, 0)[buf.rank]
        recv_x, recv_count, handle, event, hook = send(buf, case, mine)
        if cast == "bf16":
            rows = recv_x
        else:
            rows, scales = recv_x
            words, dtype = (2, torch.int32) if cast == "ue8m0" else (5, torch.float32)
            expected = ((EXPERTS_LOCAL, ROWS, words), dtype, (ROWS * words, 1, ROWS))
            assert layout(scales) == expected
        kind = torch.bfloat16 if cast == "bf16" else torch.float8_e4m3fn
        assert layout(rows) == ((EXPERTS_LOCAL, ROWS, 640), kind, (ROWS * 640, 640, 1))
        assert layout(recv_count) == ((EXPERTS_LOCAL,), torch.int32, (1,))
        assert isinstance(event, deep_ll.EventOverlap)
        assert hook is None

        assert isinstance(handle, tuple)
        src_info, layout_range, max_tokens, hidden, num_experts = handle
        assert layout(src_info) == ((EXPERTS_LOCAL, ROWS), torch.int32, (ROWS, 1))
        assert layout(layout_range) == ((EXPERTS_LOCAL, 2), torch.int64, (2, 1))
        assert (max_tokens, hidden, num_experts) == (8, 640, 6)
        assert [type(n) for n in (max_tokens, hidden, num_experts)] == [int] * 3

        travelled = pickle.loads(pickle.dumps(handle))  # the five values, without the round
        assert travelled.layout_range.equal(layout_range)
        assert travelled.src_info.equal(src_info)
        assert travelled[2:] == handle[2:] == (8, 640, 6)


@pytest.mark.parametrize("cast", CASTS)
def test_dispatch(cast):
    run_ranks(2, check_dispatch, cast)


def check_combine(group, mode):
    with make_buffer(group, CASE) as buf:
        mine = make_inputs(CASE, 0)[buf.rank]
        _, _, handle, _, _ = send(buf, CASE, mine)
        view = buf.get_next_low_latency_combine_buffer(handle)
        expected = ((EXPERTS_LOCAL, ROWS, 640), torch.bfloat16, (ROWS * 640, 640, 1))
        assert layout(view) == expected
        x = padded(CASE, [torch.zeros(0, 640)] * EXPERTS_LOCAL)
        combined, event, hook = buf.low_latency_combine(
            x, mine.topk_idx, mine.topk_weights, handle, **mode_options(mode)
        )
        assert isinstance(event, deep_ll.EventOverlap)
        assert (hook is not None) == (mode == "hook")
        if hook is not None:
            assert hook() is None
        event.current_stream_wait()
        assert layout(combined) == ((5, 640), torch.bfloat16, (640, 1))


@pytest.mark.parametrize("mode", ["plain", "event", "hook"])
def test_combine(mode):
    run_ranks(2, check_combine, mode)


def check_by_keyword(group):
    with make_buffer(group, CASE) as buf:
        inputs = make_inputs(CASE, 0)
        mine = inputs[buf.rank]
        stats = torch.zeros(EXPERTS_LOCAL, dtype=torch.int32)
        _, recv_count, handle, _, _ = buf.low_latency_dispatch(
            x=mine.x,
            topk_idx=mine.topk_idx,
            num_max_dispatch_tokens_per_rank=8,
            num_experts=6,
            cumulative_local_expert_recv_stats=stats,
            use_fp8=True,
            round_scale=False,
            use_ue8m0=False,
            async_finish=False,
            return_recv_hook=False,
        )
        received = expect(CASE, inputs)[buf.rank]
        assert recv_count.tolist() == [e.src_info.numel() for e in received] == stats.tolist()
        x = torch.zeros(EXPERTS_LOCAL, ROWS, 640, dtype=torch.bfloat16)
        combined, _, _ = buf.low_latency_combine(
            x=x,
            topk_idx=mine.topk_idx,
            topk_weights=mine.topk_weights,
            handle=handle,
            zero_copy=False,
            async_finish=False,
            return_recv_hook=False,
            out=None,
        )
        assert not combined.any()


def test_names_are_deepeps():
    run_ranks(2, check_by_keyword)


def check_buffer(group):
    with make_buffer(group, CASE) as buf:
        assert buf.group_size == 2
        assert buf.num_rdma_bytes > 0
        assert buf.low_latency_mode is True
        assert buf.clean_low_latency_buffer(8, 640, 6) is None
        assert "reserved" in str(buf.plan())
        return buf.rank


def test_buffer_attributes():
    assert run_ranks(2, check_buffer) == [0, 1]


def test_module_surface():
    assert deep_ll.topk_idx_t is torch.int64
    info = deep_ll.info()
    assert info["torch"] == torch.__version__
    assert info["version"] == deep_ll.__version__
    assert info["cpu_level"]
    error = deep_ll.DeepLLError
    assert issubclass(error, RuntimeError)
    assert issubclass(deep_ll.ArgumentError, error)
    assert issubclass(deep_ll.ArgumentError, ValueError)
    assert issubclass(deep_ll.OrderError, error)
    assert issubclass(deep_ll.PeerError, error)
    assert issubclass(deep_ll.PeerTimeout, deep_ll.PeerError)
    assert issubclass(deep_ll.PeerTimeout, TimeoutError)
    assert issubclass(deep_ll.HeapMemoryError, error)
    assert issubclass(deep_ll.HeapMemoryError, MemoryError)


def check_row_major_scales(group, cast):
    """The same scales, where a processor likes them."""
    case = Case(**{**CASE.__dict__, "cast": cast})
    with make_buffer(group, case, row_major_scales=True) as buf:
        for round_idx in range(3):
            inputs = make_inputs(case, round_idx)
            recv_x, recv_count, handle, _, _ = send(buf, case, inputs[buf.rank])
            assert recv_x[1].stride(2) == 1
            assert_received(recv_x, recv_count, handle, expect(case, inputs)[buf.rank])


@pytest.mark.parametrize("cast", [cast for cast in CASTS if cast != "bf16"])
def test_row_major_scales(cast):
    run_ranks(2, check_row_major_scales, cast)
