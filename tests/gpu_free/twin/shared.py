"""The process in which all tests of the twin run: starting one costs seconds."""

import atexit
import functools

from fake_cuda.process import FakeProcess


@functools.cache
def process() -> FakeProcess:
    """Runs functions in it."""
    made = FakeProcess()
    atexit.register(made.close)
    return made
