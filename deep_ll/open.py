"""Opens the session of a buffer: the runtime follows from the device and the kind of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deep_ll import checks
from deep_ll.errors import ArgumentError
from deep_ll.runtime.group import require_cpu_backend
from deep_ll.runtime.heap import open_heap
from deep_ll.runtime.join import join_heap
from deep_ll.runtime.store_group import StoreGroup
from deep_ll.session import Session

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from deep_ll.arguments import Traffic
    from deep_ll.env import Settings
    from deep_ll.gpu_session import GpuSession
    from deep_ll.runtime.group import Group
    from deep_ll.runtime.paths import Wish

    AnySession: TypeAlias = Session | GpuSession


@dataclass(frozen=True)
class Options:
    """What a caller of the constructor chose."""

    timeout_s: float
    num_threads: int | None
    row_major_scales: bool
    num_sms: int | None
    allow_pcie_p2p: bool
    traffic: Traffic
    enable_shrink: bool = False

    def check(self) -> None:
        """Raises ArgumentError for numbers that cannot be."""
        checks.timeout(self.timeout_s)
        for name, value in (("num_threads", self.num_threads), ("num_sms", self.num_sms)):
            if value is not None and value < 1:
                raise ArgumentError(f"{name} is {value}: it must be 1 or more")


def open_session(
    group: Group,
    device: torch.device,
    num_bytes: int,
    expected: int | None,
    settings: Settings,
    options: Options,
    wanted: Wish,
) -> AnySession:
    """Makes the heap and what works on it. Collective."""
    if device.type == "cpu":
        require_cpu_backend(group)
        if isinstance(group, StoreGroup) and group.rejoin:
            return _join(group, num_bytes, expected, settings, options, wanted)
        heap = open_heap(group, num_bytes, wanted)
        return Session(heap, settings, expected, options)
    # Only now: machines without a GPU need none of its packages.
    from deep_ll.gpu_open import open_gpu_session

    return open_gpu_session(group, device, num_bytes, settings, options, wanted)


def _join(
    group: StoreGroup,
    num_bytes: int,
    expected: int | None,
    settings: Settings,
    options: Options,
    wanted: Wish,
) -> Session:
    """The session of a rank that began anew, where the living are."""
    if not options.enable_shrink:
        raise ArgumentError("StoreGroup(rejoin=True) needs enable_shrink=True, as on all ranks")
    heap, progress, place = join_heap(group, num_bytes, wanted)
    session = Session(heap, settings, expected, options)
    session.begin_at(progress, place)
    return session
