"""What kernels told the host. They find things out after the call that launched them returned, and
write them where this process can read them; the next call raises them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deep_ll import failures
from deep_ll.errors import ArgumentError

if TYPE_CHECKING:
    from deep_ll import _native
    from deep_ll.errors import DeepLLError

_REMEDY = "This buffer can only be destroyed now"
_REASONS = {
    1: "no expert has this number",
    2: "the token chose this expert before",
    3: "this is not what was dispatched",
}


class Told:
    """Reads it. All of it is published by kernels with release, and read with acquire."""

    def __init__(self, launches: _native.Launches, rank: int, timeout_s: float) -> None:
        self._launches, self._rank = launches, rank
        self.timeout_s = timeout_s  # of the last call

    def failure(self) -> DeepLLError | None:
        """Why kernels gave up a wait, after which none runs any more; None: they did not."""
        if not self._launches.failed():
            return None
        which = "an earlier operation"
        return failures.why(self._launches, self._rank, which, self.timeout_s, _REMEDY)

    def raise_bad_choice(self) -> None:
        """Raises once, if kernels met a choice that is none. The buffer can be used."""
        bad = self._launches.take_bad_choice()
        if bad is None:
            return
        what, token, choice, value = bad
        raise ArgumentError(
            f"topk_idx[{token}, {choice}] of an earlier dispatch or combine is {value}: "
            f"{_REASONS[what]}; it counted as -1. Kernels found it, so its results are those of "
            "-1. Nothing was done in this call: make it again"
        )
