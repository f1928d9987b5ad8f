"""Memory that the harness and all its rank processes see."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor


class SharedTensor:
    """A tensor of zeros in anonymous shared memory; pickled, it travels as a path to that memory.

    The memory lives as long as a process has it open: nothing is left behind, and the size of
    /dev/shm does not matter. The process that made it must live until the others have opened it.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._fd = os.memfd_create("deep_ll-bench")
        os.ftruncate(self._fd, max(math.prod(shape) * dtype.itemsize, 1))
        self._open(f"/proc/{os.getpid()}/fd/{self._fd}", tuple(shape), dtype)

    def _open(self, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._where = path, shape, dtype
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=math.prod(shape))
        self.tensor: Tensor = flat.view(shape)

    def __getstate__(self) -> tuple[str, tuple[int, ...], torch.dtype]:
        return self._where

    def __setstate__(self, where: tuple[str, tuple[int, ...], torch.dtype]) -> None:
        self._fd = -1
        self._open(*where)

    def fileno(self) -> int:
        """The descriptor of the memory, in the process that made it."""
        return self._fd

    def close(self) -> None:
        """Gives the descriptor back; what is mapped stays mapped while the tensor is in use."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
