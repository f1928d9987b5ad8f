"""Why an operation did not get through, in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from deep_ll.errors import DeepLLError, PeerError, PeerTimeout

if TYPE_CHECKING:
    from deep_ll._native import Difference, Nonsense

_TIMED_OUT, _DEAD, _EVICTED = 1, 3, 4
_OUTPUTS = 4
_COUNT, _LABEL, _GRANT = 1, 2, 3  # of what there is nonsense; else of an epoch
_FIELDS = 4  # of a label: source, dispatch, token, choice; 16 bits each
_USABLE = "Nothing was moved, the buffer can be used again"
_UNUSABLE = "This buffer can only be destroyed now"
_CORRUPT = (
    "Its memory or this rank's is corrupt, or it runs another version of deep_ll; nothing was "
    "written outside this buffer's rows."
)
_PHASES = {
    1: "counts",
    2: "rows",
    3: "credit (rows of an earlier combine were not read)",
    4: "outputs",
    5: "grants",
    6: "meeting",
    7: "labels of the rows to send back",
}
_NAMES = ("num_experts", "num_max_dispatch_tokens_per_rank", "hidden", "top-k", "format", "slot")
_FORMATS = ("bf16", "fp8", "fp8 with rounded scales", "fp8 with ue8m0 scales")


class Reporter(Protocol):
    """The native side of a session, which knows how its last call ended."""

    def report(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        """Outcome of the last wait, what was waited for, epoch, ranks that are missing and what
        was seen of each.
        """

    def disagreement(self) -> Difference | None:
        """Which peer says something else, and what."""

    def nonsense(self) -> Nonsense | None:
        """What a peer left here that cannot be: of what, peer, phase, place, found, bound."""


def why(
    native: Reporter,
    rank: int,
    name: str,
    timeout_s: float,
    remedy: str = _USABLE,
    gone: Collection[int] = (),
) -> DeepLLError:
    """The exception for an operation that the kernels gave up.

    Args:
        native: holds the report.
        rank: this rank.
        name: of the operation, for people.
        timeout_s: how long it waited.
        remedy: what becomes of the buffer after ranks disagreed on a dispatch.
        gone: peers behind a link that cannot be reached any more.
    """
    nonsense = native.nonsense()
    if nonsense is not None:
        return PeerError(f"rank {rank}, {name}, {_nonsense(nonsense)}. {_CORRUPT} {_UNUSABLE}")
    outcome, phase, expected, missing = native.report()
    if outcome == _TIMED_OUT:
        return _timeout(rank, name, timeout_s, phase, expected, missing)
    if outcome == _DEAD:
        ranks = [peer for peer, _ in missing if peer in gone]
        return PeerError(
            f"rank {rank}, {name}, phase {_PHASES[phase]}: ranks {ranks} have not come and cannot "
            "be reached any more: processes ended, buffers were destroyed, or the network "
            f"failed. {_UNUSABLE}"
        )
    if outcome == _EVICTED:
        ranks = [peer for peer, _ in missing]
        return PeerError(
            f"rank {rank}, {name}, phase {_PHASES[phase]}: this rank was masked by ranks {ranks}, "
            f"which did not hear from it in time and go on without it. {_UNUSABLE}"
        )
    other = native.disagreement()
    if other is None:
        return DeepLLError(f"rank {rank}, {name}: interrupted while it waited for peers")
    peer, phase, theirs, ours, their_value, our_value = other
    if phase == _OUTPUTS:
        return PeerError(f"rank {rank}, {name}: {_combine_differs(peer, their_value, our_value)}")
    differs = [
        _differs(*values)
        for values in zip(_NAMES, ours, theirs, strict=True)
        if values[1] != values[2]
    ]
    return PeerError(
        f"rank {rank}, {name}: rank {peer} dispatches something else: {', '.join(differs)}; all "
        f"ranks must pass the same values. {remedy}"
    )


def _timeout(
    rank: int,
    name: str,
    timeout_s: float,
    phase: int,
    expected: int,
    missing: list[tuple[int, int]],
) -> PeerTimeout:
    ranks = [peer for peer, _ in missing]
    seen = ", ".join(f"{epoch} from rank {peer}" for peer, epoch in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return PeerTimeout(
        f"rank {rank}, {name}, phase {_PHASES[phase]}: nothing from ranks {ranks} after "
        f"{timeout_s:g} s "
        f"(expected epoch {expected}, found {seen}{more}). Are these ranks alive, and do they "
        f"make the same calls in the "
        f"same order? {_UNUSABLE}"
    )


def _nonsense(nonsense: Nonsense) -> str:
    of, peer, phase, place, found, bound = nonsense
    where = f"phase {_PHASES[phase]}: "
    if of == _COUNT:
        return (
            f"{where}rank {peer} announces {found} rows for expert {place}, but a rank has at most "
            f"{bound} tokens"
        )
    if of == _LABEL:
        return where + _bad_label(peer, place, _fields(found), _fields(bound))
    if of == _GRANT:
        return (
            f"{where}rank {peer} grants this rank rows of expert {place} from row {found} on, but "
            f"they begin at {bound} or before"
        )
    return (
        f"{where}rank {peer} is at epoch {found}, but cannot be further than {bound} while this "
        f"rank waits for {place}"
    )


def _fields(label: int) -> list[int]:
    return [label >> 16 * i & 0xFFFF for i in range(_FIELDS)]


def _bad_label(peer: int, row: int, found: list[int], right: list[int]) -> str:
    """`right`: the source, the low half of the dispatch's epoch, and bounds of token and choice."""
    source, dispatch, token, choice = found
    return (
        f"row {row} of an expert here should be one of rank {peer}, dispatch #{right[1]} (mod "
        f"65536), with a token below {right[2]} and a choice below {right[3]}; its label says rank "
        f"{source}, dispatch #{dispatch}, token {token}, choice {choice}"
    )


def _differs(name: str, ours: int, theirs: int) -> str:
    if name == "format":
        said = _FORMATS[theirs] if theirs < len(_FORMATS) else f"format {theirs}, which is none"
        return f"it sends {said}, this rank {_FORMATS[ours]}"
    return f"{name} is {theirs} there and {ours} here"


def _combine_differs(peer: int, theirs: int, ours: int) -> str:
    if theirs >> 3 != ours >> 3:
        return (
            f"rank {peer} combines dispatch #{theirs >> 3}, this rank dispatch #{ours >> 3}: "
            f"combine in the same order on all ranks"
        )
    if theirs & 3 == ours & 3:
        return (
            f"rank {peer} combines in slot {theirs >> 2 & 1}, this rank in slot {ours >> 2 & 1}: "
            f"make, record and replay the same calls on all ranks"
        )
    how = ("plainly", "with zero_copy", "with use_logfmt")
    return (
        f"rank {peer} combines {how[theirs & 3]}, this rank {how[ours & 3]}: all ranks must "
        f"agree on zero_copy and use_logfmt"
    )
