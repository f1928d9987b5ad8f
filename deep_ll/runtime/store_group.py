"""A group over a torch.distributed Store, which a rank can join anew: no process group can."""

from __future__ import annotations

import contextlib
import pickle
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from deep_ll.errors import ArgumentError, PeerTimeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")
_ROOT = "deep_ll"
_KEPT = 2  # gatherings whose keys stay: all ranks have read the one before the last


class StoreGroup:
    """Ranks that find each other by the keys of a store (TCPStore, FileStore, ...). A Buffer takes
    it where it takes a process group.

    Args:
        store: the same for all ranks; it must outlive them, a rank that rejoins included. Values
            are pickled: who can write into the store can run code here, as with torch's own.
        rank, size: of the group, 0 <= rank < size.
        name: of the group in the store: one for each buffer that lives at the same time.
        generation: another number for each time that all ranks begin anew over the same store.
        timeout_s: how long ranks are waited for, seconds.
        rejoin: this rank begins anew while the others live. The constructor of its buffer then
            waits until they have called `buffer.rejoin(rank)`.

    Raises:
        ArgumentError: rank or size cannot be.
    """

    in_process = False

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        name: str = "buffer",
        generation: int = 0,
        timeout_s: float = 60.0,
        rejoin: bool = False,
    ) -> None:
        if not 0 <= rank < size:
            raise ArgumentError(f"rank is {rank}: it must be from 0 to size - 1 = {size - 1}")
        self.rank, self.size = rank, size
        self.timeout_s, self.rejoin = timeout_s, rejoin
        self._store, self._prefix = store, f"{_ROOT}/{name}/{generation}"
        self._gathered = 0

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective; a rank that rejoins has nobody to ask.

        Raises:
            PeerTimeout: ranks have not come; it names them.
        """
        if self.rejoin:
            return [value] * self.size
        number, self._gathered = self._gathered, self._gathered + 1
        self.put(f"gather/{number}/{self.rank}", value)
        keys = {rank: f"gather/{number}/{rank}" for rank in range(self.size)}
        values = self.get(keys, time.monotonic() + self.timeout_s, f"meeting #{number}")
        if number >= _KEPT:
            self.drop(f"gather/{number - _KEPT}/{self.rank}")
        return [values[rank] for rank in range(self.size)]

    def put(self, key: str, value: object) -> None:
        """Shows a value to whoever knows the key."""
        data = pickle.dumps(value)
        self._store.set(f"{self._prefix}/{key}", data)  # type: ignore[arg-type]  # bytes do

    def count(self, key: str, by: int) -> int:
        """Adds to a counter; what it is then."""
        return int(self._store.add(f"{self._prefix}/{key}", by))

    def drop(self, key: str) -> None:
        """Forgets a key. Some stores cannot."""
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._store.delete_key(f"{self._prefix}/{key}")

    def get(self, keys: Mapping[int, str], deadline: float, what: str) -> dict[int, Any]:
        """The values of keys, each from a rank. `deadline`: on the monotonic clock.

        Raises:
            PeerTimeout: it names the ranks whose values have not come.
        """
        begun = time.monotonic()
        for key in keys.values():
            left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
            try:
                self._store.wait([f"{self._prefix}/{key}"], left)
            except RuntimeError as error:
                missing = [r for r, k in keys.items() if not self._has(k)]
                if not missing:
                    continue
                raise PeerTimeout(
                    f"rank {self.rank}, {what}: nothing from ranks {missing} after "
                    f"{time.monotonic() - begun:.1f} s. Are they alive, and do they make the same "
                    "call?"
                ) from error
        return {r: pickle.loads(self._store.get(f"{self._prefix}/{k}")) for r, k in keys.items()}

    def _has(self, key: str) -> bool:
        return bool(self._store.check([f"{self._prefix}/{key}"]))
