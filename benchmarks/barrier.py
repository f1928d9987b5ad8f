"""The barrier before every timed operation: the C library's, so all wait as the floor does."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from benchmarks.shared_tensor import SharedTensor

PTHREAD_PROCESS_SHARED = 1
ROOM_BYTES = 256  # more than a pthread_barrier_t or its attributes take anywhere

_libc = ctypes.CDLL(None)


class Barrier:
    """A process-shared pthread_barrier_t; pickled, it is the same barrier elsewhere."""

    def __init__(self, num_ranks: int) -> None:
        self._memory = SharedTensor([ROOM_BYTES], torch.uint8)
        attributes = ctypes.create_string_buffer(ROOM_BYTES)
        _call(_libc.pthread_barrierattr_init, attributes)
        _call(_libc.pthread_barrierattr_setpshared, attributes, PTHREAD_PROCESS_SHARED)
        _call(_libc.pthread_barrier_init, self._address(), attributes, ctypes.c_uint(num_ranks))

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        _libc.pthread_barrier_wait(self._address())

    def close(self) -> None:
        """Gives the memory's descriptor back."""
        self._memory.close()

    def _address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._memory.tensor.data_ptr())


def _call(function: Any, *args: object) -> None:
    error = function(*args)
    if error != 0:
        raise OSError(error, f"{function.__name__} failed")
