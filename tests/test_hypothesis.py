"""Shapes and routings that nobody thought of."""

from cases import CASTS, Case
from exchange import exchange
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deep_ll.testing import run_ranks


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(st.integers(1, 4))
    experts = draw(st.integers(1, 6 * world))
    max_tokens = draw(st.integers(1, 40))
    cast = draw(st.sampled_from(sorted(CASTS)))
    unit = 8 if cast == "bf16" else 128
    tokens = st.lists(st.integers(0, max_tokens), min_size=world, max_size=world)
    hidden = unit * draw(st.integers(1, 12))
    way = draw(st.sampled_from(["push", "zero_copy", "logfmt"]))
    return Case(
        world=world,
        experts=experts,
        tokens=tuple(draw(tokens)),
        max_tokens=max_tokens,
        hidden=hidden,
        topk=draw(st.integers(1, min(experts, 32))),
        cast=cast,
        mode=draw(st.sampled_from(["plain", "hook", "event"])),
        zero_copy=way == "zero_copy",
        logfmt=way == "logfmt" and hidden % 128 == 0,
        routing=draw(st.sampled_from(["random", "holes", "hot", "none"])),
        values=draw(st.sampled_from(["normal", "zeros", "huge", "tiny", "wild"])),
        idx=draw(st.sampled_from(["int32", "int64"])),
        threads=draw(st.sampled_from([None, 1, 2, 3])),
        out=draw(st.booleans()),
        seed=draw(st.integers(0, 2**20)),
    )


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,  # the same examples in every run; a longer hunt sets max_examples
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases())
def test_any_case(case: Case) -> None:
    run_ranks(case.world, exchange, case)
