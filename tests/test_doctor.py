"""`python -m deep_ll doctor`: what it says of machines that are not well, and of this one."""

import ctypes.util
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sick_machines import GPUS, SICK, Sick, make

from deep_ll import Buffer
from deep_ll.__main__ import main
from deep_ll.commands import doctor
from deep_ll.commands.doctor import cards, exchange, gpus, host, lines, network
from deep_ll.commands.doctor.lines import ABSENT, BROKEN, OK, WARNING, Line, Machine
from deep_ll.runtime import handover
from deep_ll.runtime.cuda import nvml
from deep_ll.runtime.cuda.preflight import Finding
from deep_ll.testing import run_ranks

ROOT = Path(__file__).resolve().parent.parent
FINDINGS = [Finding("driver", False, "none", "install it"), Finding("nvshmem", True, "3.4.5")]
PCI = [f"0000{gpu}" for gpu in GPUS]  # as NVML writes them


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("DEEP_LL_", "NVSHMEM_", "UCX_", "GLOO_", "NCCL_", "CUDA_VISIBLE")):
            monkeypatch.delenv(name)


@pytest.fixture
def machine_of(monkeypatch, tmp_path, no_settings):
    """Makes a machine with two GPUs that NVLink joins, and what is different on it."""
    monkeypatch.setattr(nvml, "gpus", lambda: [(pci, "H200") for pci in PCI])
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (True, "NVLink"))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    monkeypatch.setattr(network, "_version", _version)

    def of(sick: Sick | None = None) -> Machine:
        for name, value in (sick.environment if sick else {}).items():
            monkeypatch.setenv(name, value)
        return Machine(make(tmp_path, sick.files if sick else {}), FINDINGS)

    return of


def _version(path: str) -> tuple[str, str]:
    return ("", "cannot open") if path.startswith("/no/") else ("1.22.0", "")


def wrong(found: list[Line]) -> dict[str, Line]:
    return {line.name: line for line in found if line.state in (WARNING, BROKEN)}


def test_a_machine_that_has_everything(machine_of) -> None:
    machine = machine_of()
    found = lines.examine(machine, doctor.CHECKS)
    # The tmpfs is the folder of this test: its size is not the machine's.
    assert set(wrong(found)) <= {"gpu: driver", "/dev/shm"}
    assert machine.gpu_wanted
    told = {line.name: line.found for line in found if line.state == OK}
    assert told["port mlx5_0:1"] == "InfiniBand, ACTIVE, 400 Gb/sec (4X NDR)"
    assert told["port mlx5_1:1"].endswith("RoCE v2 GID 3")
    assert told[f"card of gpu {GPUS[0]}"] == "mlx5_0, NUMA node 0"
    assert told[f"card of gpu {GPUS[1]}"] == "mlx5_1, NUMA node 1"
    assert told["nvlink of gpu 1"] == "0: NVLink"
    assert told["ibgda: card"] == "mlx5_0, mlx5_1"
    assert told["ibgda: gpu memory"] == "nvidia_peermem"


@pytest.mark.parametrize("sick", SICK, ids=str)
def test_what_is_wrong_is_said(machine_of, sick: Sick) -> None:
    found = lines.examine(machine_of(sick), doctor.CHECKS)
    (line,) = [line for line in found if line.name == sick.name]
    assert line.state == sick.state
    assert sick.found in line.found
    assert sick.cure in line.cure
    assert bool(line.cure) == (line.state in (WARNING, BROKEN))


def test_dmabuf_instead_of_peermem(machine_of) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n"
    files = {"sys/module": None, "proc/driver/nvidia/version": version}
    found = cards.ibgda(machine_of(Sick("dmabuf", files, "", "", "", "")))
    (line,) = [line for line in found if line.name == "ibgda: gpu memory"]
    assert (line.state, line.found) == (OK, "dmabuf, by the open kernel module")


@pytest.mark.parametrize(
    ("found", "hint"),
    [("none (CUDA_ERROR_SYSTEM_NOT_READY (802))", "nvidia-fabricmanager"), ("none", "install it")],
)
def test_what_gpus_need(found: str, hint: str, tmp_path: Path) -> None:
    survey = [Finding("driver", False, found, "install it"), Finding("nvidia-ml-py", False, "no")]
    (driver, optional) = gpus.needs(Machine(tmp_path, survey, gpu_wanted=True))
    assert (driver.state, optional.state) == (BROKEN, WARNING)
    assert hint in driver.cure
    assert [line.state for line in gpus.needs(Machine(tmp_path, survey))] == [ABSENT, ABSENT]


def test_gpus_without_nvlink(machine_of, monkeypatch) -> None:
    machine = machine_of()
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (False, "PCIe, meeting nowhere"))
    (line, _) = gpus.nvlinks(machine)
    assert (line.state, line.found) == (WARNING, "1: PCIe, meeting nowhere")
    assert "allow_pcie_p2p" in line.cure
    monkeypatch.setattr(nvml, "gpus", _no_nvml)
    (line,) = gpus.nvlinks(machine)
    assert (line.state, line.found) == (WARNING, "cannot be told: NVML does not start")


def _no_nvml() -> None:
    raise nvml.NvmlUnavailable("NVML does not start")


def test_plugins_of_nvshmem(machine_of, monkeypatch, tmp_path) -> None:
    machine, folder = machine_of(), tmp_path / "lib"
    folder.mkdir()
    (folder / "nvshmem_transport_ibrc.so.3").touch()
    monkeypatch.setattr(gpus, "_nvshmem_folder", lambda: folder)
    (line,) = gpus.nvshmem(machine)
    assert line.state == BROKEN
    assert line.found == ("transports ibrc (deep_ll chooses), bootstrap uid missing")
    (folder / "nvshmem_bootstrap_uid.so.3").touch()
    assert gpus.nvshmem(machine)[0].state == OK
    for transport, state in (("ibrc", OK), ("none", OK), ("ucx", BROKEN)):
        monkeypatch.setenv("NVSHMEM_REMOTE_TRANSPORT", transport)
        (line,) = gpus.nvshmem(machine)
        assert (line.state, bool(line.cure)) == (state, state == BROKEN)
    monkeypatch.setattr(gpus, "_nvshmem_folder", lambda: None)
    assert gpus.nvshmem(machine)[0].state == BROKEN


def test_a_kernel_without_memfd(machine_of, monkeypatch) -> None:
    monkeypatch.setattr(handover.os, "memfd_create", _refused)
    (line,) = host.sealed_memory(machine_of())
    assert (line.state, line.name) == (BROKEN, "shared heaps")
    assert "seccomp" in line.cure


def _refused(*args: object) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_small_shm(machine_of, monkeypatch) -> None:
    small = os.statvfs_result((4096, 4096, 16384, 16384, 1024, 0, 0, 0, 0, 255))
    monkeypatch.setattr(host.os, "statvfs", lambda path: small)
    (line,) = host.shared_memory(machine_of())
    assert (line.state, line.found[:27]) == (WARNING, "4.0 MiB of 64.0 MiB free; d")
    assert "--shm-size" in line.cure


def test_a_value_that_cannot_be(machine_of) -> None:
    """It has one line; checks that need the environment say only that they were not done."""
    sick = Sick("value", {}, "", "", "", "", {"DEEP_LL_NUM_SMS": "none"})
    found = wrong(lines.examine(machine_of(sick), doctor.CHECKS))
    assert [line.name for line in found.values() if line.state == BROKEN] == [
        "gpu: driver",
        "environment",
    ]
    assert found["ucx"].found.startswith("not checked: DEEP_LL_NUM_SMS='none'")
    assert not [line for line in found.values() if "report it" in line.cure]


@pytest.mark.parametrize("device", ["cuda", "cpu", "nowhere"])
def test_whether_gpus_are_needed(capsys, monkeypatch, no_settings, device: str) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (gpus.needs,))
    monkeypatch.setattr(lines.preflight, "survey", lambda: FINDINGS)
    monkeypatch.setattr(Machine, "gpus", lambda self: [])
    monkeypatch.setenv("DEEP_LL_DEVICE", device)
    status, _ = this_machine(capsys)
    assert status == (1 if device == "cuda" else 0)


def this_machine(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    return main(["doctor", *args]), capsys.readouterr().out


def test_this_machine_as_json(capsys, no_settings) -> None:
    status, out = this_machine(capsys, "--json")
    told = json.loads(out)
    names = [line["name"] for line in told["lines"]]
    assert {"python", "torch", "memory", "shared heaps", "ucx", "environment"} <= set(names)
    assert not [line for line in told["lines"] if "this check failed" in line["found"]]
    broken = [line for line in told["lines"] if line["state"] == BROKEN]
    assert (status, told["broken"]) == (int(bool(broken)), len(broken))


def test_this_machine_as_a_table(capsys, monkeypatch, no_settings) -> None:
    checks = (host.python, host.sealed_memory, lambda machine: [Line("x", BROKEN, "y", "do z")])
    monkeypatch.setattr(doctor, "CHECKS", checks)
    status, out = this_machine(capsys)
    rows = out.splitlines()
    assert status == 1
    assert rows[-1] == "1 broken, 0 warnings"
    start = rows[0].index("3.")  # of the version of Python: the third column
    assert rows[1][start:].startswith("memfd with seals")
    assert rows[2].split() == ["broken", "x", "y"]
    assert rows[3] == " " * start + "-> do z"


def start(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """As a user starts it."""
    command = [sys.executable, "-m", "deep_ll", "doctor", *args]
    env = {**os.environ, **environment}
    options = {"cwd": ROOT, "env": env, "timeout": 110}
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.timeout(120)
def test_ranks_exchange(no_settings) -> None:
    """Two that map each other's memory, and one behind the network."""
    done = start({"DEEP_LL_RANKS_PER_NODE": "2"}, "--ranks", "3", "--device", "cpu", "--json")
    told = json.loads(done.stdout)
    (line,) = [line for line in told["lines"] if line["name"] == "3 ranks, cpu"]
    assert line["state"] == OK, line
    kinds = [[path["kind"] for path in own] for own in told["paths"]]
    assert kinds == [["self", "p2p", "link"], ["p2p", "self", "link"], ["link", "link", "self"]]
    assert all(path["reason"] for own in told["paths"] for path in own)


@pytest.mark.timeout(120)
def test_ranks_that_cannot(no_settings) -> None:
    environment = {"NVSHMEM_DISABLE_P2P": "1", "DEEP_LL_LIBUCP": "/no/libucp.so.0"}
    done = start(environment, "--ranks", "2")
    assert done.returncode == 1
    states = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert {("broken", "ucx"), ("broken", "2")} <= states
    assert "LinkUnavailable: rank" in done.stdout


def test_a_wrong_byte_is_found(monkeypatch) -> None:
    """By the comparison of --ranks."""
    run_ranks(2, exchange.round_trip, "cpu")
    right = Buffer.low_latency_dispatch

    def lose_a_bit(*args: object, **options: object) -> object:
        results = right(*args, **options)
        rows = results[0][0] if options["use_fp8"] else results[0]
        first = int(results[1].nonzero()[0])
        rows[first, 0, :4].view(torch.uint8)[0] ^= 1
        return results

    monkeypatch.setattr(Buffer, "low_latency_dispatch", lose_a_bit)
    with pytest.raises(AssertionError, match="rows of local expert"):
        run_ranks(2, exchange.round_trip, "cpu")


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_wrong_numbers_of_ranks(capsys, number: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", f"--ranks={number}"])
    assert caught.value.code == 2
    assert "--ranks" in capsys.readouterr().err
