"""Which NVSHMEM the kernels for networks are built with, and what the build made of them."""

import json
from pathlib import Path

import pytest
from sass import tools
from setuptools.errors import CompileError

from deep_ll.runtime.cuda import network

setup_network = tools.build_module("setup_network")
BUILT = network.built()
VERSION = "".join(
    f"#define NVSHMEM_VENDOR_{part}_VERSION {{}}\n" for part in ("MAJOR", "MINOR", "PATCH")
)


def tree(folder: Path, version: str) -> Path:
    (folder / "include" / "non_abi").mkdir(parents=True)
    text = VERSION.format(*version.split("."))
    (folder / "include" / "non_abi" / "nvshmem_version.h").write_text(text)
    (folder / "lib").mkdir()
    (folder / "lib" / "libnvshmem_device.a").touch()
    return folder


def test_each_folder_is_a_module(tmp_path, monkeypatch):
    places = [tree(tmp_path / version, version) for version in ("3.4.5", "3.7.2")]
    monkeypatch.setenv("DEEP_LL_NVSHMEM", ":".join(map(str, places)))
    found = setup_network.trees()
    assert [(each.folder, each.minor) for each in found] == [(places[0], "3.4"), (places[1], "3.7")]
    monkeypatch.setenv("DEEP_LL_NVSHMEM", "off")
    assert setup_network.trees() == []


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        (["3.4.4"], "NVSHMEM 3.4.4 in"),
        (["3.7.1", "3.7.2"], "two trees of NVSHMEM 3.7"),
        ([], "no NVSHMEM (include/, lib/) in"),
    ],
)
def test_what_cannot_be_built_with_is_refused(tmp_path, monkeypatch, versions, text):
    places = [tree(tmp_path / version, version) for version in versions] or [tmp_path / "none"]
    monkeypatch.setenv("DEEP_LL_NVSHMEM", ":".join(map(str, places)))
    with pytest.raises(CompileError) as error:
        setup_network.trees()
    assert text in str(error.value)


def test_spills_are_bounded():
    uses = {"combine": {"sm_90a": {"registers": 128, "spilled": setup_network.MOST_SPILLED + 1}}}
    for kernels in (uses, {}):
        with pytest.raises(CompileError):
            setup_network._refuse_spills(kernels)


@pytest.mark.skipif(not BUILT, reason="no kernels for networks were built here")
def test_modules_are_of_this_source(monkeypatch):
    monkeypatch.chdir(tools.ROOT)
    for version, fatbin in BUILT.items():
        assert fatbin.stat().st_size > 1 << 20
        facts = json.loads(fatbin.with_suffix(".json").read_text())
        assert facts["sources"] == setup_network.setup_cuda.digest(), "csrc has changed: make build"
        assert facts["nvshmem"] == version
        for archs in facts["kernels"].values():
            assert set(archs) == {"sm_80", "sm_90a", "sm_100a"}
            assert archs["sm_90a"]["spilled"] == 0
