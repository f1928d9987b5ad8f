"""The rules for machine code, one line each. Each is shown to be able to fail by test_sass.py."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sass.code import Kernel

PEER_WORD, HOST_WORD, BLOCK_WORD = (
    r"STG\.E\.64\.STRONG\.SYS",
    r"STG\.E\.STRONG\.SYS",
    r"(STG\.E|ATOMG\.E\.ADD)\.STRONG\.GPU",
)
# Of a 64-bit word that only the epoch is taken from, the assembler reads that half alone.
PEER_LOOK = r"LDG\.E(\.64)?\.STRONG\.SYS"
BLOCK_LOOK = r"LDG\.E\.STRONG\.GPU"
EMPTY_L1 = r"CCTL\.IVALL"
CLOCK = "SR_GLOBALTIMERLO"


def is_after(kernel: Kernel, where: int, stores: str, fence: str) -> bool:
    """Shortly before `where` is the fence, and between them no store but such ones."""
    for i in range(where - 1, max(-1, where - 24), -1):
        if kernel.code[i].matches(fence):
            return True
        ends = kernel.code[i].matches(r"(ST|STG|STS|ATOM|ATOMG|RED|REDG)\b.*|EXIT|BAR\..*")
        if ends and not kernel.code[i].matches(stores):
            return False
    return False


def most_between(kernel: Kernel, wanted: str, end: str) -> int:
    """How many such instructions follow each other, at most, before an `end`."""
    most = run = 0
    for instruction in kernel.code:
        if instruction.matches(wanted):
            run += 1
        elif instruction.matches(end):
            run = 0
        most = max(most, run)
    return most


def released(kernel: Kernel, stores: str, fence: str) -> bool:
    """There are such stores, and each comes after the fence."""
    where = kernel.at(stores)
    return bool(where) and all(is_after(kernel, i, stores, fence) for i in where)


def polls(kernel: Kernel) -> list[range]:
    """Loops that wait for a peer: they look at a word and at the clock."""
    return [
        loop
        for loop in kernel.innermost
        if any(kernel.code[i].matches(PEER_LOOK) for i in loop)
        and any(CLOCK in kernel.code[i].rest for i in loop)
    ]


def meetings(kernel: Kernel) -> list[range]:
    """Loops that wait for the other blocks."""
    return [
        loop
        for loop in kernel.innermost
        if any(kernel.code[i].matches(BLOCK_LOOK) for i in loop) and loop not in polls(kernel)
    ]


def light(kernel: Kernel, loops: list[range]) -> bool:
    """No turn of these loops has a fence or empties L1."""
    heavy = rf"MEMBAR.*|{EMPTY_L1}|ERRBAR"
    return all(not kernel.code[i].matches(heavy) for loop in loops for i in loop)


def acquires(kernel: Kernel) -> list[int]:
    """Looks at a peer's word after which L1 is emptied."""
    return [i for i in kernel.at(PEER_LOOK) if kernel.has_after(i, EMPTY_L1)]


def acquired_after(kernel: Kernel, poll: range) -> bool:
    """Between a poll's end and the next barrier is an acquire."""
    ends = [i for i in kernel.at(r"BAR\.SYNC.*") if i >= poll.stop] or [len(kernel.code)]
    return any(poll.stop <= i < ends[0] for i in acquires(kernel))


def acquired_once(kernel: Kernel) -> bool:
    """Each wait for a peer ends in an acquire, outside of the loop."""
    return len(polls(kernel)) > 0 and all(acquired_after(kernel, poll) for poll in polls(kernel))


def met(kernel: Kernel) -> bool:
    """After each wait for the other blocks L1 is emptied before anybody goes on."""
    return all(
        any(i.matches(EMPTY_L1) for i in kernel.code[loop.stop : loop.stop + 16])
        for loop in meetings(kernel)
    )


def bulk(kernel: Kernel) -> int:
    """How many bulk copies there are."""
    return kernel.count(r"UBLKCP.*")


def sealed(kernel: Kernel) -> bool:
    """What threads built in shared memory is sealed before the copy engine reads it."""
    for store in kernel.at(r"UBLKCP\.G\.S"):
        barriers = [i for i in kernel.at(r"BAR\.SYNC.*") if i < store]
        if not barriers or not kernel.has_before(barriers[-1], r"FENCE\.VIEW\.ASYNC.*", 12):
            return False
    return True


def settled(kernel: Kernel) -> bool:
    """The copy engine has written everything before the team meets: `wait_group 0`, not `.read`."""
    return bulk(kernel) == 0 or any(
        kernel.code[i].rest.strip() == "SB0, 0x0" and kernel.has_after(i, EMPTY_L1)
        for i in kernel.at(r"DEPBAR\.LE")
    )


class Rule(NamedTuple):
    """`holds` is asked for these kernels and architectures; empty: for all."""

    says: str
    holds: Callable[[Kernel], bool]
    kernels: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    long_rows: bool = False  # rows of 2048 channels have no eight vectors for a lane

    def concerns(self, kernel: str, arch: str) -> bool:
        """Whether it is asked here."""
        return kernel in (self.kernels or (kernel,)) and arch in (self.archs or (arch,))


BULK = ("sm_90a", "sm_100a")
BIG = ("dispatch", "combine")
ALL_WARPS = 512

RULES = [
    Rule(
        "publishes with a system-scope release",
        lambda k: released(k, PEER_WORD, r"MEMBAR\.ALL\.SYS"),
    ),
    Rule(
        "tells the host with a system-scope release",
        lambda k: released(k, HOST_WORD, r"MEMBAR\.ALL\.SYS"),
    ),
    Rule(
        "blocks meet with a GPU-scope release",
        lambda k: released(k, BLOCK_WORD, r"MEMBAR\.ALL\.GPU"),
    ),
    Rule("polls without fences", lambda k: light(k, polls(k))),
    Rule("each wait for a peer ends in an acquire", acquired_once),
    Rule("blocks meet in a loop without fences", lambda k: light(k, meetings(k)), BIG),
    Rule("blocks meet, then acquire", lambda k: met(k) and len(meetings(k)) > 0, BIG),
    Rule("no sequentially consistent fence", lambda k: k.count(r"MEMBAR\.SC.*") == 0),
    Rule("no local memory", lambda k: k.count(r"(LDL|STL)(\..*)?") == 0),
    Rule(
        "only a caller's rows come through the read-only path",
        lambda k: k.count(r"LDG.*CONSTANT.*") == k.count(r"LDG\.E\.NA\.128\.CONSTANT"),
    ),
    Rule(
        "outputs of peers never come through the read-only path",
        lambda k: k.count(r"LDG.*CONSTANT.*") == 0,
        ("combine", "credit"),
    ),
    Rule(
        "keeps eight loads of outputs under way",
        lambda k: most_between(k, r"LDG\.E\.NA\.128(\.CONSTANT)?", r"FFMA.*") >= 8,
        ("combine",),
    ),
    Rule(
        "keeps eight loads of a token under way",
        lambda k: k.count(r"LDG\.E\.NA\.128\.CONSTANT") >= 20,
        ("dispatch",),
        long_rows=True,
    ),
    Rule(
        "stores rows 16 bytes at a time",
        lambda k: 0 < k.count(r"STG\.E\.NA\.128") == k.count(r"STG.*\.NA.*"),
        BIG,
    ),
    Rule(
        "casts to FP8 in hardware",
        lambda k: k.count(r"F2FP\.SATFINITE\.E4M3.*") >= 4,
        ("dispatch",),
        BULK,
    ),
    Rule("rows travel by bulk copies", lambda k: bulk(k) >= 2, BIG, BULK),
    Rule("seals rows before they are copied in bulk", sealed, ("dispatch",), BULK),
    Rule("bulk copies are complete before blocks meet", settled, BIG, BULK),
    Rule("no bulk copies before Hopper", lambda k: bulk(k) == 0, (), ("sm_80",)),
]


def broken(
    kernels: dict[str, Kernel], arch: str, long_rows: bool = True
) -> Iterator[tuple[str, str]]:
    """Kernel and rule, wherever one does not hold."""
    for name, kernel in sorted(kernels.items()):
        for rule in RULES:
            if rule.long_rows and not long_rows:
                continue
            if rule.concerns(name, arch) and not rule.holds(kernel):
                yield name, rule.says
