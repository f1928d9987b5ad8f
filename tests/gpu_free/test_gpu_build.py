"""The build finds an nvcc or says what is left out, and packages hold what was built."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from sass import tools

from deep_ll import _native

ROOT = tools.ROOT
setup_cuda = tools.build_module("setup_cuda")
setup_nvcc = tools.build_module("setup_nvcc")
needs_kernels = pytest.mark.skipif(
    not (tools.KERNELS / "ep.json").exists(), reason="no kernels for GPUs are built: no nvcc"
)

ARCHS = "compute_75 compute_80 compute_90 compute_100"
FAKE_NVCC = """#!/bin/sh
case "$1" in
    --version) echo 'Cuda compilation tools, release 0, V{version}' ;;
    --list-gpu-arch) echo '{archs}' ;;
    *) echo '{complaint}' >&2; exit {status} ;;
esac
"""


@pytest.fixture
def nvcc_at(monkeypatch: pytest.MonkeyPatch):
    """Only what is put into a folder is found."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "DEEP_LL_CUDA", "CXX"):
        monkeypatch.delenv(name, raising=False)

    def put(path: Path, version="13.0.88", archs=ARCHS, complaint="", status=0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"version": version, "archs": archs, "complaint": complaint, "status": status}
        path.write_text(FAKE_NVCC.format(**told), encoding="utf-8")
        path.chmod(0o755)
        return path

    return put


def test_explicit_compiler_is_the_only_one(nvcc_at, monkeypatch, tmp_path) -> None:
    named = nvcc_at(tmp_path / "named" / "nvcc")
    nvcc_at(tmp_path / "home" / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert setup_nvcc.find_nvcc(tmp_path).command == [str(tmp_path / "home" / "bin" / "nvcc")]
    monkeypatch.setenv("CUDACXX", str(named))
    assert setup_nvcc.find_nvcc(tmp_path).command == [str(named)]
    monkeypatch.setenv("CUDACXX", str(tmp_path / "nothing"))
    with pytest.raises(setup_nvcc.NoCompilerError, match=r"there is no .*nothing"):
        setup_nvcc.find_nvcc(tmp_path)


def test_compiler_of_the_wheels_is_found(nvcc_at, monkeypatch, tmp_path) -> None:
    wheel = nvcc_at(tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert wheel in set(setup_nvcc._candidates())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"version": "12.4.131"}, r"is V12\.4\.131, older than 12\.8"),
        ({"archs": "compute_90 compute_100"}, "does not know compute_80"),
        ({"complaint": "unsupported GNU version", "status": 1}, "unsupported GNU version"),
    ],
)
def test_compiler_that_will_not_do(fault, told, nvcc_at, monkeypatch, tmp_path, capfd) -> None:
    monkeypatch.setenv("CUDACXX", str(nvcc_at(tmp_path / "nvcc", **fault)))
    assert setup_nvcc.choose_nvcc(tmp_path) is None
    notice = capfd.readouterr().err
    assert re.search(told, notice)
    assert "left out" in notice
    assert "pip install 'deep_ll[cuda13-build]'" in notice
    monkeypatch.setenv("DEEP_LL_CUDA", "require")
    with pytest.raises(setup_nvcc.CompileError, match=told):
        setup_nvcc.choose_nvcc(tmp_path)
    monkeypatch.setenv("DEEP_LL_CUDA", "off")
    assert setup_nvcc.choose_nvcc(tmp_path) is None
    assert capfd.readouterr().err == ""


def test_wish_that_is_none(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DEEP_LL_CUDA", "yes")
    with pytest.raises(setup_nvcc.CompileError, match="auto, require or off"):
        setup_nvcc.choose_nvcc(tmp_path)


def test_all_that_the_unit_includes_counts_as_its_source(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    seen, open_ends = set(), [setup_cuda.UNIT]
    while open_ends:
        path = open_ends.pop()
        if path not in seen:
            seen.add(path)
            names = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
            open_ends += [setup_cuda.CSRC / name for name in names]
    host_only = {path for path in seen if "host" in path.parts}
    assert seen - host_only <= set(setup_cuda.sources())
    # They are behind `#if !defined(__CUDACC__)`.
    assert {path.parent for path in host_only} <= {setup_cuda.CSRC / "team" / "host"}


@needs_kernels
def test_kernels_are_described() -> None:
    described = tools.description()
    assert set(described["tiers"]) == set(setup_cuda.TIERS)
    sizes = {
        "dispatch": _native.Launches.DISPATCH_BYTES,
        "combine": _native.Launches.COMBINE_BYTES,
        "credit": _native.Launches.COMBINE_BYTES,
    }
    for tier, facts in described["tiers"].items():
        assert (tools.KERNELS / facts["file"]).stat().st_size > 0
        assert facts["hidden"] == setup_cuda.TIERS[tier]
        for kernel, about in facts["kernels"].items():
            assert about["params_bytes"] == sizes[kernel], "make build"
            assert set(about["uses"]) == {"sm_80", "sm_90a", "sm_100a"}


def run(folder: Path, *command: object, **env: str) -> None:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source distribution, with the objects of this tree: nothing is compiled twice."""
    folder = tmp_path_factory.mktemp("sdist")
    backend = "from setuptools import build_meta; build_meta.build_sdist('{}')"
    run(ROOT, sys.executable, "-c", backend.format(folder))
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    unpacked = next(path for path in folder.iterdir() if path.is_dir())
    if (ROOT / "build" / "objects").is_dir():
        shutil.copytree(ROOT / "build" / "objects", unpacked / "build" / "objects")
    return unpacked


def wheel_of(sdist: Path, folder: Path, **env: str) -> set[str]:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sdist, *pip, "-w", folder, sdist, **env)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "installed")
        return {name for name in archive.namelist() if name.startswith("deep_ll/")}


def test_source_distribution_can_be_built(sdist: Path) -> None:
    for name in ("setup.py", "setup_cuda.py", "setup_nvcc.py", "csrc/team/gpu/league.cuh"):
        assert (sdist / name).is_file()
    assert (sdist / setup_cuda.UNIT).is_file()
    assert list(sdist.rglob("*.fatbin")) == [*(sdist / "build").rglob("*.fatbin")]


@needs_kernels
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_holds_the_kernels(sdist: Path, tmp_path: Path) -> None:
    names = wheel_of(sdist, tmp_path, DEEP_LL_CUDA="require")
    kernels = {f"deep_ll/_kernels/ep_{tier}.fatbin" for tier in setup_cuda.TIERS}
    found = {name for name in names if "_kernels" in name and "/net_" not in name}
    assert found == kernels | {"deep_ll/_kernels/ep.json"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_without_nvcc_serves_cpus(sdist: Path, tmp_path: Path) -> None:
    names = wheel_of(sdist, tmp_path, CUDACXX="/nonexistent/nvcc")
    assert not [name for name in names if "_kernels" in name]
    check = "from deep_ll import _native; assert _native.__file__.startswith('{}')"
    run(tmp_path / "installed", sys.executable, "-c", check.format(tmp_path), PYTHONPATH=".")


def test_setup_py_finds_its_modules_from_anywhere(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-c", f"import runpy; runpy.run_path({str(ROOT / 'setup.py')!r})")


def test_architectures_are_of_one_table() -> None:
    made = [arch for shipped in setup_nvcc.ARCHS.values() for arch in shipped]
    assert made == ["sm_80", "compute_80", "sm_90a", "compute_90", "sm_100a"]
