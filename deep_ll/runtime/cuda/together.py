"""Steps that all ranks must take, or none."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from deep_ll.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deep_ll.runtime.group import Group


@contextlib.contextmanager
def together(group: Group, doing: str) -> Iterator[None]:
    """Does what is in it and learns whether all ranks could. Collective.

    A rank that failed would leave the others waiting in the next collective call, for ever: so
    every rank raises, the one that failed its own error.

    Args:
        group: the ranks.
        doing: what is done, for the message: "starting NVSHMEM".

    Raises:
        PeerError: another rank failed; it says which and why.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    verdicts = group.all_gather(None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(verdicts) if text is not None]
    if failed:
        more = f"\nand {len(failed) - 4} ranks more" if len(failed) > 4 else ""
        raise PeerError(f"{doing} failed on a peer\n" + "\n".join(failed[:4]) + more)
