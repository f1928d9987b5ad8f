"""What info() tells of GPUs, wherever it runs, without starting CUDA."""

import json
import subprocess
import sys

import pytest

import deep_ll
from deep_ll.runtime.cuda import images, preflight
from deep_ll.runtime.cuda.preflight import Finding

DRIVER = Finding("driver", True, "CUDA 13.0")
NVSHMEM = Finding("nvshmem", False, "not installed", "pip install it")
NVML = Finding("nvidia-ml-py", False, "not installed", "pip install it")


def test_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "survey", lambda: [DRIVER, NVSHMEM, NVML])
    info = deep_ll.info()
    assert info["runtimes"] == {
        "host": "available",
        "threads": "available",
        "nvshmem": "missing: nvshmem (not installed)",
        "loopback": "available",
    }
    driver, nvshmem, _ = info["gpu"]["findings"]
    assert driver == {"name": "driver", "ok": True, "found": "CUDA 13.0", "cure": ""}
    assert nvshmem["cure"] == "pip install it"


def test_kernels_that_are_built(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    facts = {"tiers": {"h7168": {}, "any": {}}, "archs": ["sm_90a"], "nvcc": "13.0.88"}
    (tmp_path / "ep.json").write_text(json.dumps(facts))
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    monkeypatch.setattr(preflight, "survey", lambda: [])
    gpu = deep_ll.info()["gpu"]
    assert gpu == {
        "kernels": True,
        "tiers": ["any", "h7168"],
        "archs": ["sm_90a"],
        "nvcc": "13.0.88",
        "findings": [],
    }


def test_kernels_that_are_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    gpu = deep_ll.info()["gpu"]
    assert (gpu["kernels"], gpu["tiers"], gpu["archs"], gpu["nvcc"]) == (False, [], [], None)
    assert not next(each for each in gpu["findings"] if each["name"] == "kernels")["ok"]


def test_cuda_is_not_started() -> None:
    code = (
        "import sys, torch, deep_ll\n"
        "before = set(sys.modules)\n"
        "deep_ll.info()\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'libcuda.so' not in open('/proc/self/maps').read()\n"
        "assert 'cuda.bindings.driver' not in set(sys.modules) - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
