"""The environment's variables: their values, their defaults, and what is refused."""

import pytest

import deep_ll
from deep_ll import env

NAMES = [variable.name for variable in env.VARIABLES]

GOOD = [
    ("DEEP_LL_TIMEOUT_S", "2.5", "timeout_s", 2.5),
    ("DEEP_LL_TIMEOUT_S", "0", "timeout_s", 0.0),
    ("DEEP_LL_NUM_THREADS", "3", "num_threads", 3),
    ("DEEP_LL_CPU_LEVEL", "v2", "cpu_level", "v2"),
    ("DEEP_LL_STREAMING", "always", "streaming", True),
    ("DEEP_LL_STREAMING", "never", "streaming", False),
    ("DEEP_LL_TRACE", "/tmp/job", "trace", "/tmp/job"),
    ("DEEP_LL_FAULT", "announce.peer:kill@3", "fault", ("announce.peer", 9, 3)),
    ("DEEP_LL_FAULT", "place:stop@1", "fault", ("place", 19, 1)),
]
BAD = [
    ("DEEP_LL_TIMEOUT_S", "soon"),
    ("DEEP_LL_TIMEOUT_S", "-1"),
    ("DEEP_LL_TIMEOUT_S", "nan"),
    ("DEEP_LL_TIMEOUT_S", "inf"),
    ("DEEP_LL_NUM_THREADS", "0"),
    ("DEEP_LL_NUM_THREADS", "two"),
    ("DEEP_LL_CPU_LEVEL", "v9"),
    ("DEEP_LL_STREAMING", "yes"),
    ("DEEP_LL_FAULT", "place"),
    ("DEEP_LL_FAULT", "place:kill@0"),
    ("DEEP_LL_FAULT", "place:hang@1"),
]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    settings = env.settings()
    assert settings.timeout_s == 100.0
    assert settings.trace is None
    assert settings.num_threads is None
    assert settings.cpu_level == ""
    assert settings.streaming is None


@pytest.mark.parametrize(("name", "value", "field", "expected"), GOOD)
def test_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(env.settings(), field) == expected


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(deep_ll.ArgumentError) as caught:
        env.settings()
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_table_has_every_variable() -> None:
    table = env.markdown_table()
    assert all(f"`{name}`" in table for name in NAMES)
