"""Groups a buffer is made over, and the kernels chosen for a machine."""

from collections.abc import Callable

import groups
import pytest
import torch
import torch.distributed as dist
from cases import CASTS, Case

import deep_ll
from deep_ll.runtime import group as groups_of_torch
from deep_ll.testing import RankPool

LEVELS = [level.removeprefix("x86-64-") for level in deep_ll.info()["cpu_levels"]]
LIVELY = [
    Case(world=2, cast=cast, values=values, hidden=hidden, zero_copy=hidden == 640)
    for cast, values, hidden in [
        *[(cast, "wild", 640) for cast in CASTS],
        ("fp8", "normal", 1024),
        ("bf16", "normal", 72),
    ]
]


def test_subgroup(pools: Callable[[int], RankPool]) -> None:
    first, outside, second = pools(3).run(groups.in_a_subgroup)
    assert (first, second) == ("rank 0 of 2", "rank 1 of 2")
    assert "group" in outside


def test_explicitly_destroy_warns(pools: Callable[[int], RankPool]) -> None:
    for messages in pools(2).run(groups.drop_without_destroy):
        assert len(messages) == 1
        assert "destroy()" in messages[0]


@pytest.mark.parametrize("case", LIVELY, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(
    pools: Callable[[int], RankPool], level: str, case: Case
) -> None:
    pools(2).run(groups.at_level, level, case)


@pytest.mark.parametrize("case", LIVELY, ids=str)
@pytest.mark.parametrize("streaming", ["always", "never"])
def test_streaming_gives_the_same_bits(
    pools: Callable[[int], RankPool], streaming: str, case: Case
) -> None:
    pools(2).run(groups.with_streaming, streaming, case)


class NcclGroup(dist.ProcessGroup):
    """A group of one rank whose only backend is for GPUs."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _get_backend_name(self) -> str:
        return "nccl"


def test_nccl_is_enough_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("get_rank", 0), ("get_world_size", 1)):
        monkeypatch.setattr(groups_of_torch.dist, name, lambda group, value=value: value)
    monkeypatch.setattr(
        groups_of_torch.dist,
        "all_gather_object",
        lambda values, value, group: values.__setitem__(0, value),
    )
    group = NcclGroup()
    assert groups_of_torch.as_group(group).all_gather("a") == ["a"]
    with pytest.raises(deep_ll.ArgumentError, match=r"dist.new_group\(backend='gloo'\)"):
        deep_ll.Buffer(group, num_rdma_bytes=1 << 20, device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(deep_ll.GpuUnavailable, match="GPUs cannot be used here"):
            deep_ll.Buffer(group, num_rdma_bytes=1 << 20, device="cuda")
