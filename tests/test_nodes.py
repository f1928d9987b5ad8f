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
PORT, STORE_PORT = "29555", "29556"  # in networks of their own
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


class Ranks:
    """Two a host, each of which does what it is told."""

    def __init__(self, hosts: tuple[Host, Host], cleanup: contextlib.ExitStack) -> None:
        self.hosts, self.cleanup = hosts, cleanup
        self.jobs: dict[int, subprocess.Popen[str]] = {}
        self.hear(self.begin(hosts[0], "store", STORE_PORT))

    def begin(self, host: Host, *args: str) -> "subprocess.Popen[str]":
        command = host.inside(sys.executable, PROGRAM, *args)
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        pipe = subprocess.PIPE
        job = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self.cleanup.callback(end, job)
        return job

    def begin_rank(self, rank: int, how: str) -> None:
        args = ("again", str(rank), self.hosts[0].address, STORE_PORT, how)
        self.jobs[rank] = self.begin(self.hosts[rank // 2], *args)

    def hear(self, job: "subprocess.Popen[str]") -> None:
        assert job.stdout is not None
        assert job.stdout.readline(), "it has ended"

    def hear_all(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.hear(self.jobs[rank])

    def tell(self, ranks: list[int], text: str) -> None:
        for rank in ranks:
            pipe = self.jobs[rank].stdin
            assert pipe is not None
            pipe.write(f"{text}\n")
            pipe.flush()

    def do(self, ranks: list[int], text: str) -> None:
        self.tell(ranks, text)
        self.hear_all(ranks)


def test_killed_rank_comes_back_to_its_host(hosts: tuple[Host, Host]) -> None:
    with contextlib.ExitStack() as cleanup:
        ranks = Ranks(hosts, cleanup)
        everybody = [0, 1, 2, 3]
        for rank in everybody:
            ranks.begin_rank(rank, "begin")
        ranks.hear_all(everybody)
        for lost, others in ((3, [0, 1, 2]), (0, [1, 2, 3])):
            ranks.do(everybody, "round 0")
            end(ranks.jobs[lost])
            ranks.do(others, f"round 1 {lost}")
            ranks.begin_rank(lost, "rejoin")
            ranks.tell(others, f"rejoin {lost}")
            ranks.hear_all(everybody)
        ranks.do(everybody, "round 2")


def test_nothing_is_seen_outside(hosts: tuple[Host, Host]) -> None:
    inside = {os.readlink(f"/proc/{host.pid}/ns/net") for host in hosts}
    assert len(inside) == 2
    assert os.readlink("/proc/self/ns/net") not in inside
