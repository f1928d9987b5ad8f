"""Compiles what many tests need before the first of them: its time limit is for itself."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock


def pytest_collection_finish(session: pytest.Session) -> None:
    """The engine that executes PTX, and the kernels' PTX."""
    names = {item.path.name for item in session.items if item.path.parent.name == "gpu_free"}
    if session.config.option.collectonly or not any(
        name.startswith(
            ("test_ptx_", "test_gpu_k", "test_gpu_m", "test_gpu_f", "test_gpu_bo", "test_gpu_n")
        )
        for name in names
    ):
        return
    import gpu_kernels
    from ptx import build

    if gpu_kernels.NVCC is None:
        return
    kernels = [("sm_90a", 0, "")]
    if "test_gpu_kernels.py" in names:
        kernels += [("sm_90a", 7168, ""), ("sm_80", 0, ""), ("sm_100a", 0, "")]
    if {"test_gpu_network.py", "test_gpu_mutants.py"} & names:
        kernels += [("sm_90a", 0, route) for route in gpu_kernels.ROUTES]
    print("\ncompiling the engine that executes PTX, and the kernels ...", flush=True)
    # Of processes that share these tests, the second finds what the first has made.
    lock = FileLock(Path(tempfile.gettempdir(), "deep_ll-ptx.lock"))
    with lock, ThreadPoolExecutor(2) as workers:
        engine = workers.submit(build.engine)
        texts = workers.map(lambda which: gpu_kernels.kept_ptx(*which), kernels)
        engine.result()
        list(texts)
