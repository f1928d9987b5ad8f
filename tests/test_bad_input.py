"""Bad input raises before anything moves: one rank errs, the other notices nothing."""

import pytest
import torch
from bad_calls import CASE, COMBINE, DISPATCH, Bad, Scene, bf16, choices
from cases import Case, make_inputs
from exchange import make_buffer, padded, round_trip

import deep_ll
from deep_ll import reference
from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_same_bits

TIMEOUT_S = 20.0


def refused(call, error, words):
    """Calls, and checks that it raised ``error`` with all ``words``."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message


def finish_well(scene):
    """The interrupted exchange completes, and more follow."""
    combined, _, _ = scene.combine()
    mine = scene.mine
    expected = reference.combine(
        scene.buf.rank, scene.outputs, scene.received, mine.topk_idx, mine.topk_weights
    )
    assert_same_bits(combined, expected, "combined")
    del scene.handle
    for round_idx in range(1, 4):
        round_trip(scene.buf, CASE, round_idx)
    scene.buf.destroy()


def bad_call(group, method, bad):
    scene = Scene(group)
    if scene.buf.rank == 0:
        call = getattr(scene, method)
        refused(lambda: call(**bad.arguments(scene)), bad.error, bad.words)
    finish_well(scene)


@pytest.mark.parametrize("bad", DISPATCH, ids=str)
def test_dispatch(bad: Bad) -> None:
    run_ranks(2, bad_call, "dispatch", bad, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("bad", COMBINE, ids=str)
def test_combine(bad: Bad) -> None:
    run_ranks(2, bad_call, "combine", bad, timeout_s=TIMEOUT_S)


def handle_of_another_buffer(group):
    scene, other = Scene(group), Scene(group)
    if scene.buf.rank == 0:
        for call in (
            lambda: scene.combine(handle=other.handle),
            lambda: scene.buf.get_next_low_latency_combine_buffer(other.handle),
        ):
            refused(call, deep_ll.OrderError, ("handle", "buffer"))
    finish_well(scene)
    finish_well(other)


def test_handle_of_another_buffer():
    run_ranks(2, handle_of_another_buffer, timeout_s=TIMEOUT_S)


def handle_too_old(group):
    scene = Scene(group)
    old = scene.handle
    scene.combine()
    for _ in range(2):
        *_, handle, _, _ = scene.dispatch()
        scene.handle = handle
        scene.combine()
    for call in (
        lambda: scene.combine(handle=old),
        lambda: scene.buf.get_next_low_latency_combine_buffer(old),
    ):
        refused(call, deep_ll.OrderError, ("#1", "#3"))
    finish_well(scene)


def test_handle_too_old():
    run_ranks(2, handle_too_old, timeout_s=TIMEOUT_S)


def third_dispatch(group):
    scene = Scene(group)
    first = scene.handle
    *_, second, _, _ = scene.dispatch()
    refused(scene.dispatch, deep_ll.OrderError, ("#1", "#3", "handle"))
    scene.combine(handle=second)
    refused(scene.dispatch, deep_ll.OrderError, ("#1", "#3", "handle"))
    del first, second
    finish_well(scene)


def test_third_dispatch_while_two_are_held():
    run_ranks(2, third_dispatch, timeout_s=TIMEOUT_S)


def third_dispatch_before_hook(group):
    scene = Scene(group)
    scene.combine()
    del scene.handle
    *_, first_hook = scene.dispatch(return_recv_hook=True)
    *_, second_handle, _, second_hook = scene.dispatch(return_recv_hook=True)
    refused(scene.dispatch, deep_ll.OrderError, ("#2", "#4", "hook"))
    first_hook()
    second_hook()
    scene.handle = second_handle
    finish_well(scene)


def test_third_dispatch_before_the_first_hook():
    run_ranks(2, third_dispatch_before_hook, timeout_s=TIMEOUT_S)


def hook_twice(group):
    scene = Scene(group)
    *_, scene.handle, _, hook = scene.dispatch(return_recv_hook=True)
    hook()
    refused(hook, deep_ll.OrderError, ("hook", "twice", "dispatch"))
    *_, hook = scene.combine(return_recv_hook=True)
    hook()
    refused(hook, deep_ll.OrderError, ("hook", "twice", "combine"))
    finish_well(scene)


def test_hook_twice():
    run_ranks(2, hook_twice, timeout_s=TIMEOUT_S)


def combine_before_hook(group):
    scene = Scene(group)
    scene.combine()
    del scene.handle
    *_, scene.handle, _, hook = scene.dispatch(return_recv_hook=True)
    if scene.buf.rank == 0:
        refused(scene.combine, deep_ll.OrderError, ("hook",))
    hook()
    finish_well(scene)


def test_combine_before_the_hook():
    run_ranks(2, combine_before_hook, timeout_s=TIMEOUT_S)


def use_after_destroy(group):
    scene = Scene(group)
    finish_well(scene)
    scene.buf.destroy()  # again: nothing happens
    buf = scene.buf
    for call in (
        scene.dispatch,
        lambda: buf.clean_low_latency_buffer(4, 128, 4),
        lambda: buf.get_next_low_latency_combine_buffer(None),
    ):
        refused(call, deep_ll.OrderError, ("destroy",))


def test_use_after_destroy():
    run_ranks(2, use_after_destroy, timeout_s=TIMEOUT_S)


def disagree(group, changes, words):
    scene = Scene(group)
    scene.combine()
    del scene.handle
    change = changes[scene.buf.rank]
    refused(lambda: scene.dispatch(**change), deep_ll.PeerError, words)
    for round_idx in range(1, 4):
        round_trip(scene.buf, CASE, round_idx)
    scene.buf.destroy()


DISAGREEMENTS = {
    "max_tokens": ([{"num_max_dispatch_tokens_per_rank": 3}, {}], ("3", "4")),
    "hidden": ([{}, {"x": bf16(3, 8), "use_fp8": False}], ("128", "8")),
    "experts": ([{}, {"num_experts": 2, "topk_idx": torch.zeros(3, 1).long()}], ("4", "2")),
    "cast": ([{}, {"use_fp8": False}], ("fp8",)),
    "ue8m0": ([{"round_scale": True}, {"round_scale": True, "use_ue8m0": True}], ("ue8m0",)),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_disagree_in_a_call(name: str) -> None:
    run_ranks(2, disagree, *DISAGREEMENTS[name], timeout_s=TIMEOUT_S)


def combine_differently(group, differ, words):
    """Ranks answer different dispatches, or in different ways; then they do it right."""
    scene = Scene(group)
    handles = [scene.handle]
    *_, second, _, _ = scene.dispatch()
    handles.append(second)
    if differ == "order":
        scene.handle = handles[scene.buf.rank]
    zero_copy = differ == "zero_copy" and scene.buf.rank == 0
    if zero_copy:
        scene.buf.get_next_low_latency_combine_buffer(scene.handle)
    ways = {"zero_copy": zero_copy, "use_logfmt": differ == "logfmt" and scene.buf.rank == 0}
    refused(lambda: scene.combine(**ways), deep_ll.PeerError, words)
    for handle in handles:
        scene.handle = handle
        scene.combine()
    scene.handle = handle = handles[0]
    del handles, second, handle
    finish_well(scene)


@pytest.mark.parametrize(
    ("differ", "words"),
    [
        ("order", ("#1", "#2", "same order")),
        ("zero_copy", ("zero_copy", "agree")),
        ("logfmt", ("use_logfmt", "plainly")),
    ],
)
def test_ranks_disagree_in_combine(differ: str, words: tuple[str, ...]) -> None:
    run_ranks(2, combine_differently, differ, words, timeout_s=TIMEOUT_S)


def disagree_at_construction(group, change):
    case = Case(**{**CASE.__dict__, **change}) if group.rank else CASE
    refused(lambda: make_buffer(group, case), deep_ll.DeepLLError, ("rank", "128"))
    with make_buffer(group, CASE) as buf:
        round_trip(buf, CASE, 0)


@pytest.mark.parametrize("change", [{"max_tokens": 8}, {"hidden": 256}, {"experts": 8}], ids=str)
def test_ranks_disagree_at_construction(change: dict[str, int]) -> None:
    run_ranks(2, disagree_at_construction, change, timeout_s=TIMEOUT_S)


CONSTRUCTIONS = [
    ({}, ("num_rdma_bytes", "three sizes")),
    ({"max_tokens_per_rank": 4, "hidden": 128}, ("num_experts",)),
    ({"max_tokens_per_rank": 0, "hidden": 128, "num_experts": 4}, ("0", "4096")),
    ({"max_tokens_per_rank": 4097, "hidden": 128, "num_experts": 4}, ("4097", "4096")),
    ({"max_tokens_per_rank": 4, "hidden": 100, "num_experts": 4}, ("100",)),
    ({"max_tokens_per_rank": 4, "hidden": 128, "num_experts": 64, "max_topk": 33}, ("33", "32")),
    ({"max_tokens_per_rank": 4, "hidden": 128, "num_experts": 4, "max_topk": 0}, ("0",)),
    ({"max_tokens_per_rank": 4, "hidden": 128, "num_experts": 4, "num_threads": 0}, ("0",)),
    ({"max_tokens_per_rank": 4, "hidden": 128, "num_experts": 4, "timeout_s": -1}, ("-1",)),
    ({"num_rdma_bytes": -5}, ("-5",)),
    ({"num_rdma_bytes": 1 << 20, "low_latency_mode": False}, ("low_latency_mode",)),
]


def bad_construction(group, options, words):
    refused(lambda: deep_ll.Buffer(group, **options), deep_ll.ArgumentError, words)
    with make_buffer(group, CASE) as buf:
        round_trip(buf, CASE, 0)


@pytest.mark.parametrize(("options", "words"), CONSTRUCTIONS, ids=str)
def test_construction(options: dict[str, int], words: tuple[str, ...]) -> None:
    run_ranks(2, bad_construction, options, words, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("group", [None, "world", 3])
def test_not_a_group(group: object) -> None:
    with pytest.raises(deep_ll.ArgumentError, match="group"):
        deep_ll.Buffer(group, num_rdma_bytes=1 << 20)


def too_small(group):
    with deep_ll.Buffer(group, num_rdma_bytes=1 << 16) as buf:
        hint = deep_ll.Buffer.get_low_latency_rdma_size_hint(64, 7168, 2, 8)
        x, topk_idx = bf16(3, 7168), torch.zeros(3, 1).long()
        if buf.rank == 0:
            call = lambda: buf.low_latency_dispatch(x, topk_idx, 64, 8)  # noqa: E731
            refused(call, deep_ll.ArgumentError, ("65536",))
        assert hint > 1 << 16
        small = Case(world=2, experts=2, tokens=1, max_tokens=1, hidden=128, topk=1)
        round_trip(buf, small, 0)


def test_buffer_too_small():
    run_ranks(2, too_small, timeout_s=TIMEOUT_S)


def rank_padding_is_not_read(group):
    """NaN in rows that no token asked for stays where it is."""
    scene = Scene(group)
    x = padded(CASE, scene.outputs[scene.buf.rank])
    assert x.isnan().any()
    combined, _, _ = scene.combine(x=x)
    assert not combined.isnan().any()
    scene.buf.destroy()


def test_rows_without_tokens_are_not_read():
    run_ranks(2, rank_padding_is_not_read, timeout_s=TIMEOUT_S)


def push_after_take(group):
    """Rows that come back would land on the outputs which the caller just wrote."""
    scene = Scene(group)
    taken = scene.buf.get_next_low_latency_combine_buffer(scene.handle)
    taken.copy_(padded(CASE, scene.outputs[scene.buf.rank]))
    refused(lambda: scene.combine(x=taken), deep_ll.OrderError, ("write over", "zero_copy=True"))
    combined, _, _ = scene.combine(x=taken, zero_copy=True)
    args = (scene.outputs, scene.received, scene.mine.topk_idx, scene.mine.topk_weights)
    assert_same_bits(combined, reference.combine(scene.buf.rank, *args), "combined")
    scene.buf.get_next_low_latency_combine_buffer(scene.handle)  # only looked at
    finish_well(scene)


def test_push_after_the_combine_buffer_was_taken():
    run_ranks(2, push_after_take, timeout_s=TIMEOUT_S)


def refused_dispatch_keeps_handles(group):
    scene = Scene(group)
    first, want = scene.handle, scene.combine()[0].clone()
    *_, scene.handle, _, _ = scene.dispatch()
    scene.combine()
    if scene.buf.rank == 0:
        wrong = choices([0, 1], [2, 2], [1, 3])
        refused(lambda: scene.dispatch(topk_idx=wrong), deep_ll.ArgumentError, ("2", "once"))
    again, _, _ = scene.combine(handle=first)
    assert_same_bits(again, want, "combined")
    del first
    finish_well(scene)


def test_a_refused_dispatch_keeps_older_handles():
    run_ranks(2, refused_dispatch_keeps_handles, timeout_s=TIMEOUT_S)


def logfmt_of_odd_rows(group):
    """Rows that are no whole groups of 128 channels."""
    case = Case(world=2, experts=2, topk=1, hidden=72, cast="bf16")
    with make_buffer(group, case) as buf:
        mine = make_inputs(case, 0)[buf.rank]
        args = (case.max_tokens, case.experts)
        *_, handle, _, _ = buf.low_latency_dispatch(mine.x, mine.topk_idx, *args, use_fp8=False)
        tensors = (bf16(1, 2 * case.max_tokens, 72), mine.topk_idx, mine.topk_weights, handle)
        words = ("72", "use_logfmt", "128")
        refused(
            lambda: buf.low_latency_combine(*tensors, use_logfmt=True),
            deep_ll.ArgumentError,
            words,
        )
        buf.low_latency_combine(*tensors)


def test_logfmt_needs_whole_groups():
    run_ranks(2, logfmt_of_odd_rows, timeout_s=TIMEOUT_S)


def stale_verdict(group):
    """A refused index must not be remembered: the next failure has its own reason."""
    scene = Scene(group)
    scene.combine()
    del scene.handle
    if scene.buf.rank == 0:
        wrong = choices([0, 1], [0, 99], [1, 3])
        refused(lambda: scene.dispatch(topk_idx=wrong), deep_ll.ArgumentError, ("99",))
    none = {"x": bf16(0, 128), "topk_idx": torch.zeros(0, 2).long()}
    change = none if scene.buf.rank == 0 else {**none, "use_fp8": False}
    refused(lambda: scene.dispatch(**change), deep_ll.PeerError, ("fp8",))
    round_trip(scene.buf, CASE, 1)
    scene.buf.destroy()


def test_a_refused_index_is_forgotten():
    run_ranks(2, stale_verdict, timeout_s=TIMEOUT_S)


def taken_with_another_handle(group):
    scene = Scene(group)
    *_, second, _, _ = scene.dispatch()
    scene.buf.get_next_low_latency_combine_buffer(second)
    words = ("zero_copy=True", "handle")
    refused(lambda: scene.combine(zero_copy=True), deep_ll.OrderError, words)
    del second
    finish_well(scene)


def test_combine_buffer_of_another_handle():
    run_ranks(2, taken_with_another_handle, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [((8, 128, 0, 8), "ranks"), ((8, 128, 2000, 2000), "1024"), ((8, 128, 1, 9000), "8192")],
)
def test_size_hint_refuses(sizes, word):
    refused(
        lambda: deep_ll.Buffer.get_low_latency_rdma_size_hint(*sizes),
        deep_ll.ArgumentError,
        (word,),
    )
