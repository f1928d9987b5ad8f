"""One GPU, all of deep_ll on it: is it right, and how fast? Writes gpu_check.json.

`make gpu-check`, or `python benchmarks/gpu_check.py --help`. What it asks is in tests/gpu/on_gpu.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    folders = [ROOT, *(ROOT / "tests" / name for name in ("", "gpu", "gpu_free"))]
    sys.path[:1] = map(str, folders)  # not this folder: its gpu_check is a script
    from on_gpu.cli import main

    sys.exit(main())
