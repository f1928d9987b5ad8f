"""Examples as their users start them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_example(
    name: str, *arguments: str, timeout_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs examples/`name`, which has to succeed, on this checkout."""
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
