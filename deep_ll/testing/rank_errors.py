"""What can go wrong with a rank of a RankPool, and how it is told."""

from __future__ import annotations

import pickle
import signal


class RankError(RuntimeError):
    """A rank raised, died or did not finish; ``rank`` is the first that did.

    What it raised is the ``__cause__``.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class RankTimeout(RankError, TimeoutError):
    """Ranks did not finish in time; the pool was killed."""


class RankDied:
    """The result of a rank that ended its process."""

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode = exitcode

    def __repr__(self) -> str:
        if self.exitcode is not None and self.exitcode < 0:
            return f"killed by {signal.Signals(-self.exitcode).name}"
        return f"ended with exit code {self.exitcode}"


class Failure:
    """What a rank answers instead of a result: the exception, if it can travel, and its text."""

    def __init__(self, error: BaseException, text: str) -> None:
        self.error: BaseException | None = error
        self.text = text
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            self.error = None


def describe(results: dict[int, object], missing: list[int]) -> str:
    """The ranks that died, raised or gave no result yet, in a line."""
    words = [f"rank {rank} still at work" for rank in missing]
    for rank, result in sorted(results.items()):
        if isinstance(result, RankDied):
            words.append(f"rank {rank} {result}")
        elif isinstance(result, Failure):
            words.append(f"rank {rank} raised {result.text.strip().splitlines()[-1]}")
    return ", ".join(words)


def rank_error(work: str, rank: int, results: dict[int, object], missing: list[int]) -> RankError:
    """The exception for the failure of ``rank``, with what became of the others."""
    result = results[rank]
    what = f"raised\n{result.text}" if isinstance(result, Failure) else f"died: {result}"
    message = f"{work}: rank {rank} {what}".rstrip()
    others = describe({r: v for r, v in results.items() if r != rank}, missing)
    error = RankError(rank, f"{message}\n(others: {others})" if others else message)
    error.__cause__ = result.error if isinstance(result, Failure) else None
    return error
