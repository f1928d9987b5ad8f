"""How busy others keep the machine: measured while every contestant sleeps."""

from __future__ import annotations

import time
from pathlib import Path

SAMPLE_SECONDS = 0.15
NOTABLE = 0.15  # of the machine: more than that shows in the times


def others_share() -> float:
    """The part of all cores' time that is used now; call it while nothing of ours runs."""
    busy, total = _ticks()
    time.sleep(SAMPLE_SECONDS)
    busy_after, total_after = _ticks()
    return (busy_after - busy) / max(total_after - total, 1)


def _ticks() -> tuple[int, int]:
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = numbers[3] + numbers[4]  # idle and waiting for a disk
    return sum(numbers) - idle, sum(numbers)
