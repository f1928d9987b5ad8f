"""The call sequences of vLLM's and SGLang's dispatchers, through `import deep_ep`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import deepep_work
import pytest
from cases import CASTS, Case

from deep_ll.testing import RankPool

Pools = Callable[[int], RankPool]

WORLD = 4
DECODE = Case(world=WORLD, experts=8, tokens=(5, 0, 16, 1), hidden=512, routing="holes")
IDLE = Case(world=WORLD, experts=8, tokens=(0, 3, 0, 0), hidden=512, seed=1)
NOBODY = Case(world=WORLD, experts=8, tokens=0, hidden=512, seed=2)
WITH_FLAGS = list(zip(CASTS, (False, True) * 2, strict=True))
MASK_AFTER_S = 2.0  # long for a rank that lives, short for a test


def case(base: Case = DECODE, **changes: object) -> Case:
    return Case(**{**base.__dict__, **changes})


@pytest.mark.parametrize(("cast", "do_async"), WITH_FLAGS)
def test_vllm_steps(pools: Pools, cast: str, do_async: bool) -> None:
    draft = case(hidden=256, topk=2, max_tokens=24, experts=16, cast=cast)
    models = [case(cast=cast), draft, case(IDLE, cast=cast)]
    # The third model has the arguments of the first, so it gets the same buffer.
    assert pools(WORLD).run(deepep_work.vllm_steps, models, do_async) == [2] * WORLD


@pytest.mark.parametrize(("cast", "second"), [("bf16", IDLE), ("fp8", NOBODY), ("ue8m0", DECODE)])
def test_vllm_microbatches(pools: Pools, cast: str, second: Case) -> None:
    batches = [case(cast=cast), case(second, cast=cast)]
    pools(WORLD).run(deepep_work.vllm_microbatches, batches, 5)


def test_vllm_goes_on_after_a_failed_step(pools: Pools) -> None:
    pools(WORLD).run(deepep_work.vllm_after_a_failed_step, DECODE)


def test_vllm_polls_masks(pools: Pools) -> None:
    stalled = 2
    masks = pools(WORLD).run(deepep_work.vllm_masks, DECODE, stalled, MASK_AFTER_S)
    for rank, seen in enumerate(masks):
        assert seen == ([] if rank == stalled else [[0, 0, 1, 0]] * 2)


@pytest.mark.parametrize(("cast", "hooks"), WITH_FLAGS)
def test_sglang_steps(pools: Pools, cast: str, hooks: bool) -> None:
    assert pools(WORLD).run(deepep_work.sglang_steps, case(cast=cast), hooks) == [2] * WORLD


@pytest.mark.parametrize("cast", ["bf16", "fp8"])
def test_sglang_two_batches(pools: Pools, cast: str) -> None:
    batches = [case(cast=cast), case(IDLE, cast=cast)]
    pools(WORLD).run(deepep_work.sglang_two_batches, batches, 4)


@pytest.mark.parametrize("first_received", [0, 1])
def test_two_batches_pending(pools: Pools, first_received: int) -> None:
    pools(WORLD).run(deepep_work.both_pending, [DECODE, IDLE], first_received)


@pytest.mark.parametrize("cast", ["bf16", "ue8m0"])
def test_call_forms(pools: Pools, cast: str) -> None:
    pools(WORLD).run(deepep_work.call_forms, case(cast=cast))
