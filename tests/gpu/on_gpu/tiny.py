"""A few small exchanges, for a sanitizer to watch. Exit codes: 0 right, 1 wrong, 3 no progress.

`python tiny.py RANKS [dry]`
"""

from __future__ import annotations

import os
import sys

from cases import Case

from deep_ll.errors import PeerTimeout
from on_gpu.loopback import run_case
from on_gpu.section import make_device

STUCK = 3
TIMEOUT_S = 20.0  # a sanitizer makes kernels many times slower


def main() -> int:
    world, dry = int(sys.argv[1]), sys.argv[2:] == ["dry"]
    device = make_device(dry)
    small = {"world": world, "experts": 2 * world, "topk": 2, "tokens": 4, "max_tokens": 4}
    cases = [
        Case(**small, hidden=256, rounds=2),
        Case(**small, hidden=200, rounds=2, cast="bf16", zero_copy=True, mode="hook"),
    ]
    try:
        problems = []
        for case in cases:
            problems += run_case(device, case, num_sms=2, timeout_s=TIMEOUT_S)
    except (PeerTimeout, TimeoutError) as error:
        print(error)
        return STUCK
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # What still waits on the GPU must not keep the process.
    os._exit(code) if code else sys.exit(0)
