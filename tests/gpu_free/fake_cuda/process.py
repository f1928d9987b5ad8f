"""A process that finds the fake driver where others find libcuda."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from fake_cuda import build

T = TypeVar("T")


class FakeProcess:
    """Runs functions, one after another, in a process of its own. What they raise is raised."""

    def __init__(self, **environment: str) -> None:
        self._environment = with_fake_driver(**environment)
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __call__(self, function: Callable[..., T], *args: object) -> T:
        # The loader reads LD_LIBRARY_PATH when the process starts, at its first call.
        with _environment(self._environment):
            future = self._pool.submit(function, *args)
        return future.result(timeout=50)

    def close(self) -> None:
        self._pool.shutdown()


def with_fake_driver(**environment: str) -> dict[str, str]:
    """Environment variables for a process with the fake driver."""
    paths = [str(build.folder()), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), **environment}


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
