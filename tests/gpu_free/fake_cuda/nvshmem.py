"""nvshmem4py for ranks that are threads: CPU memory, and a log of every call."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from deep_ll.runtime.cuda.nvshmem_job import Modules


class Call(NamedTuple):
    """A call of `module.name`; a word from elsewhere ("gather", "synchronize") has no module."""

    name: str
    module: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012


class World:
    """What the ranks of a job share."""

    def __init__(self, size: int) -> None:
        self.memory: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self.unreachable: set[tuple[int, int]] = set()


class FakeNvshmem:
    """One rank's nvshmem4py.

    Attributes:
        log: all calls of this rank.
        fail: name of a function -> what it raises.
        environment: NVSHMEM's variables when its library was loaded.
    """

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.log: list[Call] = []
        self.fail: dict[str, Exception] = {}
        self.version, self.status, self.numbers = "3.4.5", 0, (0, 0)
        self.status_when_started = 2
        self.environment: dict[str, str] = {}

    def load(self) -> Modules:
        """What `nvshmem_job.load` gives."""
        return Modules(
            self._module("core", "get_version get_unique_id init bytetensor free_tensor finalize"),
            self._module(
                "bindings",
                "init_status my_pe n_pes ptr culibrary_init culibrary_finalize quiet_on_stream",
            ),
            lambda index: SimpleNamespace(set_current=lambda: self.note("set_current")),
            create_queues=self._logged("network", "create_queues"),
            load_kernels=self._logged("network", "load_kernels"),
        )

    def note(self, word: str) -> None:
        """Puts a word of somebody else into the log, and whether all memory is zero by now."""
        zero = not any(int(memory.sum()) for memory in self.world.memory[self.rank])
        self.log.append(Call(word, args=(zero,)))

    def names(self) -> list[str]:
        """The log without arguments."""
        return [call.name for call in self.log]

    def _module(self, module: str, names: str) -> SimpleNamespace:
        return SimpleNamespace(**{name: self._logged(module, name) for name in names.split()})

    def _logged(self, module: str, name: str):
        def function(*args: Any, **kwargs: Any) -> Any:
            self.log.append(Call(name, module, args, kwargs))
            if name in self.fail:
                raise self.fail[name]
            return getattr(self, f"_{name}")(*args, **kwargs)

        return function

    def _get_version(self) -> SimpleNamespace:
        self.environment = {k: v for k, v in os.environ.items() if k.startswith("NVSHMEM_")}
        return SimpleNamespace(libnvshmem_version=self.version)

    def _get_unique_id(self) -> str:
        return "the job's address"

    def _init(self, device: Any, uid: str, rank: int, nranks: int, **_: Any) -> None:
        assert uid == "the job's address"
        self.status, self.numbers = self.status_when_started, (rank, nranks)

    def _init_status(self) -> int:
        return self.status

    def _my_pe(self) -> int:
        return self.numbers[0]

    def _n_pes(self) -> int:
        return self.numbers[1]

    def _bytetensor(self, shape: tuple[int], **_: Any) -> torch.Tensor:
        memory = torch.full(shape, 0xA5, dtype=torch.uint8)
        self.world.memory[self.rank].append(memory)
        return memory

    def _ptr(self, address: int, peer: int) -> int:
        own = [memory.data_ptr() for memory in self.world.memory[self.rank]]
        reachable = (self.rank, peer) not in self.world.unreachable
        if self.environment.get("NVSHMEM_DISABLE_P2P") == "1":
            reachable = peer == self.rank
        return self.world.memory[peer][own.index(address)].data_ptr() if reachable else 0

    def _create_queues(self, count: int) -> list[int]:
        return [7 + index for index in range(count)]

    def _load_kernels(self, fatbin: Path, device_index: int) -> int:
        return 0xCAFE

    def _culibrary_init(self, handle: int) -> int:
        return 0

    def _culibrary_finalize(self, handle: int) -> None:
        pass

    def _quiet_on_stream(self, stream: int) -> None:
        pass

    def _free_tensor(self, tensor: torch.Tensor) -> None:
        pass

    def _finalize(self) -> None:
        self.status = 0
