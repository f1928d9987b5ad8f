"""Ranks on two hosts that share nothing but a network cable."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_hosts import Host, two_hosts, why_not

from deep_ll import _native

HERE = Path(__file__).parent
PROGRAM = str(HERE / "hosts_work.py")
PORT = "29555"  # in networks of their own
LIMIT_S = 240  # on a busy machine; it takes 30

pytestmark = [
    pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX"),
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S + 20),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with two_hosts() as both:
        yield both


def run(commands: list[list[str]], done: Path) -> None:
    """All at once; the first that fails ends the others."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{HERE.parent}:{HERE}",
        "GLOO_SOCKET_IFNAME": "eth0",
        "DONE": str(done),
    }
    with contextlib.ExitStack() as cleanup:
        jobs = []
        for index, command in enumerate(commands):
            told = cleanup.enter_context((done / f"told_{index}").open("w+"))
            job = subprocess.Popen(
                command, env=environment, stdout=told, stderr=told, start_new_session=True
            )
            cleanup.callback(end, job)
            jobs.append((job, told.name))
        for job, told in jobs:
            code = job.wait(LIMIT_S)
            assert code == 0, Path(told).read_text()[-4000:]


def end(job: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, 9)
    job.wait(10)


def finished(done: Path, world: int) -> int:
    return len(list(done.glob(f"{world}_*")))


def test_torchrun_two_by_two(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    run(
        [
            host.inside(
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
                f"--node-rank={index}", f"--master-addr={hosts[0].address}",
                f"--master-port={PORT}", PROGRAM,
            )
            for index, host in enumerate(hosts)
        ],
        tmp_path,
    )  # fmt: skip
    assert finished(tmp_path, 4) == 4


def test_two_by_eight(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    run(
        [
            host.inside(sys.executable, PROGRAM, "fork", str(index), "8", hosts[0].address, PORT)
            for index, host in enumerate(hosts)
        ],
        tmp_path,
    )
    assert finished(tmp_path, 16) == 16


def test_nothing_is_seen_outside(hosts: tuple[Host, Host]) -> None:
    inside = {os.readlink(f"/proc/{host.pid}/ns/net") for host in hosts}
    assert len(inside) == 2
    assert os.readlink("/proc/self/ns/net") not in inside
