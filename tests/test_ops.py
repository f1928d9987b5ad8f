"""The operators of torch: traced, compiled and exported, against the oracle."""

import sys
from collections.abc import Callable
from pathlib import Path

import compiled_work
import pytest
from example_run import run_example

import deep_ll
from deep_ll.testing import RankPool

Pools = Callable[[int], RankPool]
BACKENDS = ["aot_eager", "inductor without kernels"]

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("cast", ["bf16", "fp8", "ue8m0"])
def test_opcheck(pools: Pools, cast: str) -> None:
    checks = ["test_aot_dispatch_dynamic", "test_autograd_registration"]
    checks += ["test_faketensor", "test_schema"]
    assert pools(2).run(compiled_work.opcheck, cast, timeout_s=120) == [checks] * 2


@pytest.mark.parametrize(
    ("backend", "cast", "row_major"),
    [
        ("aot_eager", "bf16", False),
        ("aot_eager", "ue8m0", True),
        ("inductor without kernels", "fp8", False),
    ],
)
def test_compiled_layer(pools: Pools, backend: str, cast: str, row_major: bool) -> None:
    work = compiled_work.compiled_layer
    graphs = pools(2).run(work, backend, cast, row_major, timeout_s=120)
    # One for any number of tokens; torch makes more for 0 and 1, by rank.
    assert all(count <= 3 for count in graphs), graphs


def test_exported_layer(pools: Pools) -> None:
    for graph in pools(2).run(compiled_work.exported_layer, timeout_s=120):
        assert graph.count("torch.ops.deep_ll.dispatch.default") == 1
        assert graph.count("torch.ops.deep_ll.combine.default") == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_without_readers_are_neither_dropped_nor_merged(pools: Pools, backend: str) -> None:
    work = compiled_work.unused_results
    assert pools(2).run(work, backend, timeout_s=120) == [[3, 6]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_rounds_at_once(pools: Pools, backend: str) -> None:
    pools(2).run(compiled_work.two_rounds, backend, timeout_s=120)


def test_what_a_graph_refuses(pools: Pools) -> None:
    for messages in pools(2).run(compiled_work.refused, timeout_s=120):
        too_many, too_old, destroyed, gone = messages
        assert too_many.startswith("ArgumentError: 9 tokens given, but num_max_dispatch")
        assert "the ticket is of dispatch #2, but only the last 2" in too_old
        assert "(#3, #4)" in too_old
        assert destroyed.startswith("OrderError: this buffer was destroyed")
        assert "which is gone" in gone


def test_operators_come_when_asked_for() -> None:
    assert deep_ll.__getattr__("ops") is sys.modules["deep_ll.ops"]
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = deep_ll.no_such_name


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_example(tmp_path: Path) -> None:
    """As a user starts it; a C++ compiler works for most of the time."""
    cache = str(tmp_path)
    run = run_example("compiled_moe_layer.py", timeout_s=380, TORCHINDUCTOR_CACHE_DIR=cache)
    lines = run.stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1] == "as uncompiled"
