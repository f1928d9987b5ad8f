"""Arguments as DeepEP's versions and its forks name and order them, and what they mean here."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from deep_ll.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS, _DEEPEPS = "allow_nvlink_traffic", "allow_nvlink_for_low_latency_mode"


class Late(NamedTuple):
    """The constructor's last arguments in DeepEP, whose places differ between its versions. None:
    not given."""

    use_fabric: bool | None = None
    explicitly_destroy: bool | None = None
    enable_shrink: bool | None = None
    comm: object = None


# The newest first. DeepEP of 2025-11 to 2026-01 had the other.
_ORDERS = (
    ("explicitly_destroy", "enable_shrink", "comm"),
    ("use_fabric", "explicitly_destroy", "enable_shrink", "comm"),
)


def late(positional: tuple[object, ...], keywords: Late) -> Late:
    """What the arguments after `allow_mnnvl` mean.

    Raises:
        TypeError: no version of DeepEP takes them so.
    """
    if not positional:
        return keywords
    readings = [
        reading for order in _ORDERS if (reading := _read(order, positional, keywords)) is not None
    ]
    if not readings:
        raise TypeError(
            f"Buffer() got {positional} by position after allow_mnnvl: DeepEP takes "
            f"{' or '.join(', '.join(order) for order in _ORDERS)} there; pass them by keyword"
        )
    meant = readings[0]
    if any(_effect(other) != _effect(meant) for other in readings[1:]):
        warnings.warn(
            f"Buffer() got {positional} by position after allow_mnnvl, where DeepEP's versions "
            f"differ: taken as {', '.join(_ORDERS[0])}, not as {', '.join(_ORDERS[1])}; pass them "
            "by keyword",
            stacklevel=3,
        )
    return meant


def _read(order: tuple[str, ...], positional: tuple[object, ...], keywords: Late) -> Late | None:
    """One version's reading; None if it cannot be meant."""
    if len(positional) > len(order):
        return None
    given: dict[str, Any] = dict(zip(order, positional, strict=False))
    for name, value in given.items():
        twice = getattr(keywords, name) is not None
        if twice or isinstance(value, bool) == (name == "comm"):
            return None
    return keywords._replace(**given)


def _effect(late: Late) -> tuple[bool, bool, object]:
    return bool(late.explicitly_destroy), bool(late.enable_shrink), late.comm


class Traffic(NamedTuple):
    """Whether peers' memory may be mapped, and which argument said so."""

    allowed: bool | None
    argument: str


def nvlink(ours: bool | None, deepeps: bool | None) -> Traffic:
    """What `allow_nvlink_traffic` and DeepEP's argument say together.

    Raises:
        ArgumentError: the opposite of each other.
    """
    if ours is not None and deepeps is not None and ours != deepeps:
        raise ArgumentError(
            f"{_OURS}={ours} contradicts {_DEEPEPS}={deepeps}: pass one of them, or the same"
        )
    return Traffic(ours, _OURS) if ours is not None else Traffic(deepeps, _DEEPEPS)


def refuse_flag(name: str, stats: object) -> None:
    """Raises for a flag where statistics of waiting belong.

    Raises:
        ArgumentError: it is one.
    """
    if isinstance(stats, bool):
        raise ArgumentError(
            f"{name} is {stats}: in DeepEP before 1.2 use_fp8 and what follows stood one or two "
            "places earlier; pass them by keyword"
        )


class Foreign(NamedTuple):
    """A keyword that only forks of DeepEP have."""

    default: object  # asks for nothing, so it is taken
    instead: str


BUFFER = {
    "eager_support": Foreign(False, "rows and their signal never wait for a round trip here"),
}
DISPATCH = {
    "topk_weights": Foreign(None, "low_latency_combine(..., topk_weights) applies the weights"),
    "use_nvfp4": Foreign(False, "use_fp8=True, or use_fp8=False and cast what was received"),
    "x_global_scale": Foreign(None, "it belongs to NVFP4: use_fp8=True scales by 128 channels"),
    "use_ue8m0_for_sf": Foreign(False, "use_ue8m0=True with round_scale=True"),
}
_AFTER = "combine when all experts are done; hooks and two micro-batches overlap the rest"
COMBINE = {
    "overlap": Foreign(False, _AFTER),
    "src_signals": Foreign(None, _AFTER),
    "src_signal_expect_value": Foreign(0, _AFTER),
    "packed_recv_count": Foreign(None, _AFTER),
    "comp_signal": Foreign(None, _AFTER),
    "block_m": Foreign(64, _AFTER),
    "threshold": Foreign(0, _AFTER),
    "num_sms": Foreign(3, "Buffer(num_sms=...), for all calls"),
}


def refuse(call: str, known: Mapping[str, Foreign], given: Mapping[str, object]) -> None:
    """Raises for keywords that `call` does not have, unless they ask for nothing.

    Raises:
        ArgumentError: a fork's; the message says what to do instead.
        TypeError: nobody's.
    """
    for name, value in given.items():
        foreign = known.get(name)
        if foreign is None:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
        default = foreign.default
        if value is default or (isinstance(value, int) and value == default):
            continue
        shown = value if isinstance(value, int | float | str) else type(value).__name__
        raise ArgumentError(
            f"{call}({name}={shown}) is of a fork of DeepEP, deep_ll does not have it. Instead: "
            f"{foreign.instead}"
        )
