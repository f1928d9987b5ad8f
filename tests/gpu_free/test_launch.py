"""Launches as the driver sees them: the bytes, the grid, the stream, errors that say enough."""

import pytest

pytest.importorskip("cuda.bindings", reason="pip install 'deep_ll[cuda13]' for the driver's API")

import launches
from fake_cuda.process import FakeProcess

CHECKS = [check for name, check in vars(launches).items() if name.startswith("check_")]


@pytest.fixture(scope="module")
def process():
    process = FakeProcess()
    yield process
    process.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_launch(process, check):
    print(process(check) or "")
