"""Calls that must be refused, as data. Each is made by rank 0 alone, in the middle of good ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from cases import Case, make_inputs, make_outputs
from exchange import expect, make_buffer, padded
from torch import Tensor

import deep_ll

CASE = Case(world=2, experts=4, tokens=3, max_tokens=4, hidden=128, topk=2)
EXPERTS_LOCAL, ROWS = 2, 8


class Scene:
    """A buffer after a dispatch, with arguments that would be right for the next call."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.buf = make_buffer(group, CASE, timeout_s=5)
        inputs = make_inputs(CASE, 0)
        self.mine = inputs[self.buf.rank]
        self.received = expect(CASE, inputs)
        self.outputs = make_outputs(CASE, 0, self.received)
        *_, self.handle, _, _ = self.dispatch()

    def dispatch(self, **changes: Any) -> Any:
        arguments: dict[str, Any] = {
            "x": self.mine.x,
            "topk_idx": self.mine.topk_idx,
            "num_max_dispatch_tokens_per_rank": CASE.max_tokens,
            "num_experts": CASE.experts,
        }
        return self.buf.low_latency_dispatch(**arguments | changes)

    def combine(self, **changes: Any) -> Any:
        arguments: dict[str, Any] = {
            "x": padded(CASE, self.outputs[self.buf.rank]),
            "topk_idx": self.mine.topk_idx,
            "topk_weights": self.mine.topk_weights,
            "handle": self.handle,
        }
        return self.buf.low_latency_combine(**arguments | changes)


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def choices(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64)


@dataclass(frozen=True)
class Bad:
    """One refused call: what it passes, and the words its message must have."""

    name: str
    words: tuple[str, ...]
    changes: dict[str, Any] | Callable[[Scene], dict[str, Any]] = field(repr=False)
    error: type[Exception] = deep_ll.ArgumentError

    def __str__(self) -> str:
        return self.name

    def arguments(self, scene: Scene) -> dict[str, Any]:
        return self.changes(scene) if callable(self.changes) else self.changes


M = "num_max_dispatch_tokens_per_rank"
BOTH_WAYS = {"async_finish": True, "return_recv_hook": True}
STATS = "cumulative_local_expert_recv_stats"


def bad_waits(operation: str) -> list[Bad]:
    """Statistics of waiting that are none."""
    name = f"{operation}_wait_recv_cost_stats"
    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "dtype": (("int32", "int64"), torch.zeros(2, dtype=torch.int32)),
        "shape": (("3", "2"), torch.zeros(3, dtype=torch.int64)),
        "not_contiguous": (("contiguous",), torch.zeros(4, dtype=torch.int64)[::2]),
        "device": (("meta", "cpu"), torch.zeros(2, dtype=torch.int64, device="meta")),
        "flag": (("True", "by keyword"), True),
    }
    return [
        Bad(f"waits_{what}", (name, *words), {name: value})
        for what, (words, value) in values.items()
    ]


DISPATCH = [
    Bad("x_dtype", ("x", "float16", "bfloat16"), {"x": torch.zeros(3, 128).half()}),
    Bad("x_device", ("x", "meta", "cpu"), {"x": torch.empty(3, 128, device="meta").bfloat16()}),
    Bad("x_is_a_list", ("x", "list"), {"x": [[1.0]]}),
    Bad("x_shape", ("x", "384"), {"x": bf16(384)}),
    Bad("x_not_contiguous", ("x", "contiguous"), {"x": bf16(3, 256)[:, ::2]}),
    Bad("hidden_beyond_buffer", ("4096", "heap"), {"x": bf16(3, 4096)}),
    Bad("hidden_not_multiple_of_128", ("72", "128"), {"x": bf16(3, 72)}),
    Bad("hidden_not_multiple_of_8", ("100", "8"), {"x": bf16(3, 100), "use_fp8": False}),
    Bad(
        "too_many_tokens",
        ("5", "4"),
        {"x": bf16(5, 128), "topk_idx": choices(*[[0, 1]] * 5)},
    ),
    Bad("topk_rows", ("topk_idx", "2", "3"), {"topk_idx": choices([0, 1], [0, 1])}),
    Bad("topk_dtype", ("topk_idx", "int16"), {"topk_idx": torch.zeros(3, 2).to(torch.int16)}),
    Bad("topk_dtype_float", ("topk_idx", "float32"), {"topk_idx": torch.zeros(3, 2)}),
    Bad("topk_shape", ("topk_idx", "6"), {"topk_idx": torch.zeros(6).long()}),
    Bad(
        "topk_not_contiguous",
        ("topk_idx", "contiguous"),
        {"topk_idx": choices(*[[0, 1, 2]] * 2).t()},
    ),
    Bad("topk_device", ("topk_idx", "meta"), {"topk_idx": torch.zeros(3, 2, device="meta").long()}),
    Bad("topk_over_experts", ("5", "4"), {"topk_idx": torch.full((3, 5), -1)}),
    Bad("topk_none", ("top-k", "0"), {"topk_idx": torch.zeros(3, 0).long()}),
    Bad("topk_over_32", ("33", "32"), {"topk_idx": torch.full((3, 33), -1)}),
    Bad("expert_too_large", ("4", "[1, 1]"), {"topk_idx": choices([0, 1], [2, 4], [0, 1])}),
    Bad("expert_negative", ("-2", "[2, 0]"), {"topk_idx": choices([0, 1], [2, 3], [-2, 1])}),
    Bad("expert_twice", ("3", "[0, 1]", "once"), {"topk_idx": choices([3, 3], [2, 3], [0, 1])}),
    Bad("max_tokens_beyond_buffer", ("64", "4"), {M: 64}),
    Bad("max_tokens_zero", ("0",), {M: 0}),
    Bad("max_tokens_over_4096", ("4097", "4096"), {M: 4097}),
    Bad("experts_zero", ("0",), {"num_experts": 0}),
    Bad("experts_beyond_buffer", ("4096", "4"), {"num_experts": 4096}),
    Bad("ue8m0_alone", ("use_ue8m0", "round_scale"), {"use_ue8m0": True}),
    Bad("event_and_hook", tuple(BOTH_WAYS), BOTH_WAYS),
    Bad("stats_dtype", (STATS, "int64", "int32"), {STATS: torch.zeros(2, dtype=torch.int64)}),
    Bad("stats_shape", (STATS, "3", "2"), {STATS: torch.zeros(3, dtype=torch.int32)}),
    Bad(
        "stats_not_contiguous",
        (STATS, "contiguous"),
        {STATS: torch.zeros(4, dtype=torch.int32)[::2]},
    ),
    *bad_waits("dispatch"),
]


def other_choices(scene: Scene) -> dict[str, Any]:
    return {"topk_idx": (scene.mine.topk_idx + 1) % CASE.experts}


COMBINE = [
    Bad("x_dtype", ("x", "float32", "bfloat16"), {"x": torch.zeros(2, 8, 128)}),
    Bad("x_device", ("x", "meta"), {"x": torch.empty(2, 8, 128, device="meta").bfloat16()}),
    Bad("x_rows", ("x", "7", "8"), {"x": bf16(2, 7, 128)}),
    Bad("x_hidden", ("x", "256", "128"), {"x": bf16(2, 8, 256)}),
    Bad("x_experts", ("x", "4", "2"), {"x": bf16(4, 8, 128)}),
    Bad("x_not_contiguous", ("x", "contiguous"), {"x": bf16(2, 8, 256)[..., ::2]}),
    Bad(
        "tokens",
        ("2", "3"),
        {"topk_idx": choices([0, 1], [0, 1]), "topk_weights": torch.zeros(2, 2)},
    ),
    Bad("topk_dtype", ("topk_idx", "int16"), {"topk_idx": torch.zeros(3, 2).to(torch.int16)}),
    Bad("other_choices", ("topk_idx[", "dispatch #1"), other_choices),
    Bad("weights_dtype", ("topk_weights", "float64"), {"topk_weights": torch.zeros(3, 2).double()}),
    Bad("weights_shape", ("topk_weights", "1", "2"), {"topk_weights": torch.zeros(3, 1)}),
    Bad(
        "weights_device",
        ("topk_weights", "meta"),
        {"topk_weights": torch.zeros(3, 2, device="meta")},
    ),
    Bad(
        "weights_not_contiguous",
        ("topk_weights", "contiguous"),
        {"topk_weights": torch.zeros(2, 3).t()},
    ),
    Bad("out_dtype", ("out", "float32", "bfloat16"), {"out": torch.zeros(3, 128)}),
    Bad("out_shape", ("out", "4", "3"), {"out": bf16(4, 128)}),
    Bad("out_not_contiguous", ("out", "contiguous"), {"out": bf16(3, 256)[:, ::2]}),
    Bad("event_and_hook", tuple(BOTH_WAYS), BOTH_WAYS),
    Bad(
        "logfmt_read_in_place",
        ("use_logfmt", "zero_copy", "choose one"),
        {"use_logfmt": True, "zero_copy": True},
    ),
    Bad("no_handle", ("handle",), {"handle": None}),
    Bad("plain_tuple", ("handle", "tuple"), lambda scene: {"handle": tuple(scene.handle)}),
    Bad("changed_handle", ("handle",), lambda scene: {"handle": scene.handle._replace(hidden=256)}),
    Bad(
        "zero_copy_without_buffer",
        ("get_next_low_latency_combine_buffer",),
        {"zero_copy": True},
        deep_ll.OrderError,
    ),
    *bad_waits("combine"),
]
