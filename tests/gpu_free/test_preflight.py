"""What is missing is known before anything starts, all of it at once, each with its cure."""

import json
import struct
import subprocess
import sys

import pytest
import torch
from fake_cuda.process import with_fake_driver

from deep_ll.errors import GpuUnavailable
from deep_ll.runtime.cuda import images, preflight, probe
from deep_ll.runtime.cuda.images import Image

PACKAGES = {
    "cuda-bindings": "13.4.4",
    "nvshmem4py-cu13": "0.4.1",
    "nvidia-nvshmem-cu13": "3.4.5",
    "nvidia-ml-py": "13.0",
}
H200 = {"name": "Fake GPU 0", "capability": [9, 0]}


def fatbin(*entries: tuple[int, int, int]) -> bytes:
    """A fatbin's headers: kind, architecture, flags of each image."""
    content = b""
    for kind, arch, flags in entries:
        header = struct.pack("<HHIQ12xI8xQ", kind, 0x101, 64, 8, arch, flags)
        content += header.ljust(64, b"\0") + b"contents"
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


ALL_GPUS = fatbin((2, 90, 0x100011), (2, 100, 0x1100011), (2, 80, 0x11), (1, 80, 0x8011))


@pytest.fixture
def complete(monkeypatch, tmp_path):
    """A machine where nothing is missing, its driver a fake; gives the path of a fatbin."""
    for name, value in with_fake_driver().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(preflight, "_version", lambda *names: PACKAGES[names[0]])
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    # `require` asks the driver in its own process, where the loader has read its paths already.
    monkeypatch.setattr(probe, "look", probe.look_elsewhere)
    tiers = {name: {"file": f"ep_{name}.fatbin"} for name in ("any", "h7168")}
    (tmp_path / "ep.json").write_text(json.dumps({"tiers": tiers, "nvcc": "13.0.88"}))
    for tier in tiers.values():
        (tmp_path / tier["file"]).write_bytes(ALL_GPUS)
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    return tmp_path / "ep_any.fatbin"


def missing() -> dict[str, tuple[str, str]]:
    return {each.name: (each.found, each.cure) for each in preflight.survey() if not each.ok}


def test_nothing_is_missing(complete):
    assert missing() == {}
    found = {each.name: each.found for each in preflight.survey(device_index=0)}
    assert found["driver"] == "CUDA 13.0"
    assert found["gpu"] == "Fake GPU 0 (9.0)"
    assert found["kernels"] == "sm_90a, sm_100a, sm_80, compute_80"
    preflight.require(0)


@pytest.mark.parametrize(
    ("environment", "name", "found", "cure"),
    [
        ({"FAKE_CUDA_DRIVER_VERSION": "12080"}, "driver", "CUDA 12.8", "R580"),
        ({"FAKE_CUDA_DEVICES": "0"}, "gpu", "the driver lists none", "CUDA_VISIBLE_DEVICES"),
        ({"FAKE_CUDA_CAPABILITY": "70"}, "kernels for the gpu", "(7.0)", "8.0 or more"),
    ],
)
def test_a_driver_or_gpu_that_is_too_old(complete, monkeypatch, environment, name, found, cure):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    ((only, what),) = missing().items()
    assert only == name
    assert found in what[0]
    assert cure in what[1]
    with pytest.raises(GpuUnavailable, match=cure):
        preflight.require(0)


def test_kernels_that_are_not_built_or_for_other_gpus(complete):
    complete.write_bytes(fatbin((2, 100, 0x1100011)))
    found, cure = missing()["kernels for the gpu"]
    assert found == "Fake GPU 1 (9.0), code for sm_100a"
    complete.unlink()
    found, cure = missing()["kernels"]
    assert found.startswith("none: no ")
    assert found.endswith("ep_any.fatbin")
    assert "deep_ll[cuda13-build]" in cure
    assert "DEEP_LL_CUDA=require" in cure


def test_packages_that_are_missing_or_old(complete, monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(preflight, "_version", lambda *names: None)
    assert set(missing()) == {"cuda-python", "nvshmem4py", "nvshmem", "nvidia-ml-py"}
    with pytest.raises(GpuUnavailable) as caught:
        preflight.require(0, nvshmem=False)
    assert "nvshmem" not in str(caught.value)
    monkeypatch.setattr(preflight, "_version", lambda *names: "3.3.20")
    assert missing()["nvshmem"] == ("3.3.20", "pip install 'nvidia-nvshmem-cu13>=3.4.5'")


def test_a_torch_without_cuda(complete, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "without CUDA" in missing()["torch"][0]


def test_a_gpu_number_too_high(complete):
    with pytest.raises(GpuUnavailable, match=r"no GPU 2, there are 2"):
        preflight.require(2)


def test_all_that_is_missing_is_said_at_once(monkeypatch, tmp_path):
    """This machine, made sure to have nothing."""
    absent = {"driver": None, "error": "libcuda.so.1: cannot open", "devices": []}
    monkeypatch.setattr(probe, "look", lambda: absent)
    monkeypatch.setattr(preflight, "_version", lambda *names: None)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    with pytest.raises(GpuUnavailable) as caught:
        preflight.require(0)
    lines = str(caught.value).splitlines()[1:]
    names = [line.split(":")[0].strip() for line in lines[::2]]
    assert names == ["driver", "gpu", "kernels", "torch", "cuda-python", "nvshmem4py", "nvshmem"]
    assert all(line.startswith("    -> ") for line in lines[1::2])


def test_a_machine_without_a_driver_is_told_from_outside(monkeypatch):
    monkeypatch.setattr(probe.subprocess, "run", _dies)
    assert "asking the driver failed" in probe.look_elsewhere()["error"]


def _dies(*args, **kwargs):
    raise subprocess.CalledProcessError(-11, args[0])


def test_which_gpus_an_image_runs_on():
    any_gpu, one, family = Image(80, False, False), Image(90, True, True), Image(80, True, False)
    assert [any_gpu.runs_on(each) for each in ((8, 0), (12, 0), (7, 5))] == [True, True, False]
    assert [one.runs_on(each) for each in ((9, 0), (10, 0))] == [True, False]
    assert not Image(100, True, True).runs_on((10, 3))
    assert [family.runs_on(each) for each in ((8, 9), (9, 0))] == [True, False]
    assert images.images(b"") == images.images(b"something else entirely") == []


def test_importing_deep_ll_imports_no_cuda_package():
    """Torch imports some of its own accord."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import deep_ll, deep_ll.runtime.cuda.nvshmem, deep_ll.runtime.cuda.driver\n"
        "import deep_ll.runtime.cuda.loopback, deep_ll.runtime.cuda.host_memory\n"
        "roots = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots & {'nvshmem', 'cuda', 'pynvml'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
