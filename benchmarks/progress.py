"""Where the benchmark is: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Writes to the error stream, so that the output is the table alone."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        """Shows what happens now."""
        line = f"[{time.monotonic() - self._begin:5.0f} s] {text}"
        self._stream.write(CLEAR_LINE + line if self._terminal else line + "\n")
        self._stream.flush()

    def done(self) -> None:
        """Leaves a terminal's line empty."""
        if self._terminal:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
