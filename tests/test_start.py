"""Jobs started the ways users start them, and how they end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accidents import shm_files

ROOT = Path(__file__).parent.parent

WORK = """
import os
import torch
import torch.distributed as dist
import deep_ll

def work(rank=None, world_size=2, destroy=True):
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo")
    buf = deep_ll.Buffer(dist.group.WORLD, max_tokens_per_rank=4, hidden=128, num_experts=4)
    x = torch.full((2, 128), 1.0 + buf.rank, dtype=torch.bfloat16)
    topk_idx = torch.tensor([[0, 3], [1, 2]])
    recv_x, count, handle, _, _ = buf.low_latency_dispatch(x, topk_idx, 4, 4, use_fp8=False)
    out, _, _ = buf.low_latency_combine(recv_x, topk_idx, torch.ones(2, 2), handle)
    assert count.tolist() == [2, 2]
    assert torch.equal(out, 2 * x), out
    open(f"done_{buf.rank}", "w").close()
    if destroy:
        buf.destroy()
        dist.destroy_process_group()
    return buf
"""

TORCHRUN = WORK + "work()\n"
NEVER_DESTROYS = WORK + "kept = work(destroy=False)\n"
IN_A_CYCLE = WORK + "kept = work(destroy=False)\nkept.myself = kept\ndel kept\n"
DIES_OF_AN_ERROR = WORK + "kept = work(destroy=False)\nraise SystemExit(3)\n"
SPAWN = (
    WORK
    + """
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
)


def run(tmp_path: Path, text: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    before = shm_files()
    finished = subprocess.run(
        [sys.executable, *launcher, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert sorted(p.name for p in tmp_path.glob("done_*")) == ["done_0", "done_1"], finished.stderr
    assert not shm_files() - before
    return finished


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launcher() -> list[str]:
    return ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]


def test_torchrun(tmp_path: Path) -> None:
    finished = run(tmp_path, TORCHRUN, *launcher())
    assert finished.returncode == 0, finished.stderr


def test_torch_multiprocessing_spawn(tmp_path: Path) -> None:
    finished = run(tmp_path, SPAWN)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("text", [NEVER_DESTROYS, IN_A_CYCLE], ids=["kept", "cycle"])
def test_exit_without_destroy(tmp_path: Path, text: str) -> None:
    start = time.monotonic()
    finished = run(tmp_path, text, *launcher())
    assert finished.returncode == 0, finished.stderr
    assert time.monotonic() - start < 40


def test_exit_by_an_error(tmp_path: Path) -> None:
    finished = run(tmp_path, DIES_OF_AN_ERROR, *launcher())
    assert finished.returncode != 0
    assert "exitcode  : 3" in finished.stderr, finished.stderr


def test_import_is_quick_and_quiet(tmp_path: Path) -> None:
    text = "import threading, deep_ll; print(threading.active_count())"
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (finished.stdout, finished.stderr) == ("1\n", "")
