"""The messages of a link as bytes, written by hand: another text than csrc/symm/message.hpp."""

import struct
from collections.abc import Sequence

SECRET = bytes(range(32))


def message(
    number: int,
    spans: Sequence[tuple[int, bytes]] = (),
    words: Sequence[tuple[int, int]] = (),
    *,
    sender: int = 1,
    secret: bytes = SECRET,
) -> bytes:
    head = secret + struct.pack("<QIHH", number, sender, len(spans), len(words))
    body = b"".join(struct.pack("<QQ", at, len(data)) + data for at, data in spans)
    return head + body + b"".join(struct.pack("<QQ", *word) for word in words)


def bad_messages(heap_bytes: int, header_bytes: int, number: int = 0) -> dict[str, bytes]:
    """A message for each thing that a receiver must refuse; to one that expects this number."""
    inside, end = header_bytes, heap_bytes
    good = message(number, [(inside, b"x" * 8)], [(inside, 1)])
    return {
        "past the end": message(number, [(end - 7, b"x" * 8)]),
        "all of it past the end": message(number, [(end + 1, b"")]),
        "around the end of numbers": message(number, [(2**64 - 4, b"x" * 8)]),
        "in the header": message(number, [(inside - 1, b"x")]),
        "a good span, then a bad one": message(number, [(inside, b"x"), (end, b"x")]),
        "a good span, then a bad word": message(number, [(inside, b"x")], [(end, 1)]),
        "word not aligned": message(number, [], [(inside + 4, 1)]),
        "word in the header": message(number, [], [(inside - 8, 1)]),
        "word past the end": message(number, [], [(end - 4, 1)]),
        "word around the end of numbers": message(number, [], [(2**64 - 8, 1)]),
        "another secret": message(number, [(inside, b"x")], secret=SECRET[::-1]),
        "secret that differs in one bit": message(
            number, secret=SECRET[:31] + bytes([SECRET[31] ^ 1])
        ),
        "from nobody": message(number, sender=1000),
        "from the greatest number": message(number, sender=2**32 - 1),
        "from the receiver itself": message(number, sender=0),
        "much too early": message(number + (1 << 16)),
        "in the past": message((number - 1) % 2**64),
        "shorter than a head": good[:40],
        "empty": b"",
        "a span cut": good[:60],
        "data cut": good[:70],
        "a word cut": good[:-1],
        "longer than it says": good + b"x",
    }
