"""Decodes what touches memory, other lanes, or the order between them."""

from .arithmetic import TYPES
from .operands import Instruction
from .parse import bits_of

GENERIC, SHARED = 0, 1
ACQUIRE, RELEASE = 1, 2
ORDERS = {"acquire": ACQUIRE, "release": RELEASE, "acq_rel": ACQUIRE | RELEASE}
# How strong an access is, as the engine numbers it.
WEAK = 1
SCOPES = {"cta": 2, "cluster": 2, "gpu": 3, "sys": 4, "gl": 3}
UPDATES = {
    name: code
    for code, name in enumerate(
        ("add", "exch", "cas", "min", "max", "and", "or", "xor", "inc", "dec")
    )
}
# Where a line is kept, or for how long, changes no meaning.
CACHE_HINTS = r"L[12]::\w+|L2::\d+B|ca|cg|cs|lu|cv|wb|wt|level::\w+"
SHARED_NAMES = ("shared", "shared::cta", "shared::cluster")


def _space(i: Instruction) -> int:
    if i.parts.has("local"):
        raise i.unknown("local memory")
    if i.parts.take(*SHARED_NAMES):
        return SHARED
    i.parts.take("global", "const", "generic")
    return GENERIC


def _element(i: Instruction) -> tuple[int, int]:
    """log2 of the bytes of an element, and its type."""
    kind = i.parts.last()
    if kind not in TYPES:
        raise i.unknown()
    return (bits_of(kind) // 8).bit_length() - 1, TYPES[kind]


def _hints(i: Instruction, usual_args: int) -> None:
    if any(part.endswith("cache_hint") for part in i.parts.left):
        i.args = i.args[:usual_args]
    i.parts.drop(CACHE_HINTS)


def _strength(i: Instruction, default: str = "") -> tuple[int, int]:
    """Bits of the order, and how strong the access is."""
    if i.parts.take("volatile", "mmio"):
        i.parts.take("relaxed")
        return 0, SCOPES[i.parts.take("sys", default="sys")]
    order = i.parts.take("weak", "relaxed", *ORDERS, default=default)
    scope = i.parts.take("cta", "cluster", "gpu", "sys")
    if order in ("", "weak"):
        return 0, WEAK
    return ORDERS.get(order, 0), SCOPES[scope or "gpu"]


def _argument(i: Instruction, text: str) -> int | None:
    """Where an argument or result of a call is kept, whose address `[param0+0]` names; None: it is
    something else."""
    name, _, offset = text.strip("[]").partition("+")
    found = i.scope.find("registers", name)
    if "param" not in i.parts.left or found is None or not name.isidentifier():
        return None
    if offset not in ("", "0"):
        raise i.unknown("a part of an argument")
    i.parts.take("param")
    return found.slot


# NVSHMEM's functions: what executes them, and which of their arguments come in which order.
_CALLS = {
    "nvshmemx_qp_char_put_nbi_warp": ("net.put", (0, 1, 2, 3, 4), 1),
    "nvshmemx_putmem_signal_nbi_warp": ("net.put", (0, 1, 2, 6, 3, 4, 5), 0),
    "nvshmemx_qp_signal_op": ("net.add", (0, 1, 2, 3, 4), 1),
    "nvshmemx_signal_op": ("net.add", (0, 1, 2, 3), 0),
    "nvshmemx_qp_fence": ("net.fence", (0, 1, 2), 1),
    "nvshmem_uint64_test": ("net.test", (0, 1, 2), 0),
}


def call(i: Instruction) -> None:
    """Of a function that a network stands behind; there are no others."""
    i.parts.take("uni")
    results = i.vector("{" + i.args.pop(0).strip("() ") + "}") if i.args[0][0] == "(" else []
    name, *rest = i.args
    if name not in _CALLS:
        raise i.unknown("a call")
    handler, order, has_queue = _CALLS[name]
    given = [part.strip() for part in rest[0].strip("() ").split(",")]
    sources = [i.src(given[place]) for place in order]
    i.emit(handler, [i.dst(result) for result in results], sources, [has_queue])


def load(i: Instruction) -> None:
    i.parts.drop("unified")
    log_size, kind = _element(i)
    _hints(i, 2)
    i.parts.take("v2", "v4", "v8")
    targets = [i.dst(name) for name in i.vector(i.args[0])]
    if (result := _argument(i, i.args[1])) is not None:
        return i.emit(f"mov.{8 << log_size}", targets, [result])
    base, offset = i.address(i.args[1])
    if i.parts.take("param", "param::entry"):
        return i.emit("ld.param", targets, [base], [0, 0, 0, log_size, kind, 0, offset])
    space, (order, strength), read_only = _space(i), _strength(i), i.parts.has("nc")
    nums = [space, order, strength, log_size, kind, read_only, offset]
    return i.emit("ld", targets, [base], nums)


def store(i: Instruction) -> None:
    log_size, kind = _element(i)
    _hints(i, 2)
    i.parts.take("v2", "v4", "v8")
    values = [i.src(name) for name in i.vector(i.args[1])]
    if (argument := _argument(i, i.args[0])) is not None:
        i.emit(f"mov.{8 << log_size}", [argument], values)
        return
    base, offset = i.address(i.args[0])
    space, (order, strength) = _space(i), _strength(i)
    i.emit("st", [], [base, *values], [space, order, strength, log_size, kind, 0, offset])


def update(i: Instruction) -> None:
    """atom and red."""
    log_size, kind = _element(i)
    returns = i.parts.name == "atom"
    operation = i.parts.take(*UPDATES)
    _hints(i, (3 if operation == "cas" else 2) + returns)
    i.parts.take("v2", "v4")
    if operation not in UPDATES or log_size < (1 if operation in ("exch", "cas") else 2):
        raise i.unknown()
    targets = [i.dst(name) for name in i.vector(i.args[0])] if returns else []
    base, offset = i.address(i.args[returns])
    values = [i.src(name) for arg in i.args[returns + 1 :] for name in i.vector(arg)]
    space, (order, strength) = _space(i), _strength(i, "relaxed")
    nums = [space, order, strength, log_size, kind, UPDATES[operation], offset]
    i.emit("atom", targets, [base, *values], nums)


def fence(i: Instruction) -> None:
    """fence and membar."""
    if i.parts.has("proxy"):
        if i.parts.has("alias"):
            return i.emit("nop", [], [])
        if not i.parts.has("async"):
            raise i.unknown()
        only = i.parts.take("global", *SHARED_NAMES)
        return i.emit("fence.proxy", [], [], [{"": 3, "global": 2}.get(only, 1)])
    if i.parts.has("mbarrier_init"):
        i.parts.take("release")
        i.parts.take("cluster")
        return i.emit("fence.proxy", [], [], [4])
    scope = i.parts.take("cta", "cluster", "gpu", "sys", "gl")
    i.parts.take("sc", "acq_rel")
    if not scope:
        raise i.unknown()
    return i.emit("fence", [], [], [SCOPES[scope]])


def barrier(i: Instruction) -> None:
    """bar and barrier."""
    i.parts.drop("cta|aligned")
    if i.parts.has("warp"):
        i.parts.take("sync")
        return i.emit("bar.warp", [], [i.src(i.args[0])])
    what = i.parts.take("sync", "arrive", "red")
    if what != "red":
        sources = [i.src(arg) for arg in i.args]
        return i.emit("bar", [], sources, [what == "arrive", 0, len(sources) > 1])
    how = ("popc", "and", "or").index(i.parts.take("popc", "and", "or"))
    i.parts.take("u32", "pred")
    vote, negated = i.condition(i.args[-1])
    sources = [*(i.src(arg) for arg in i.args[1:-1]), vote]
    nums = [2, how, len(sources) > 2, len(sources) - 1, negated]
    return i.emit("bar", [i.dst(i.args[0])], sources, nums)


def shuffle(i: Instruction) -> None:
    i.parts.take("sync")
    i.parts.take("b32")
    mode = ("up", "down", "bfly", "idx").index(i.parts.take("up", "down", "bfly", "idx"))
    targets = [i.dst(name) for name in i.args[0].split("|")]
    i.emit("shfl", targets, [i.src(arg) for arg in i.args[1:5]], [mode])


def vote(i: Instruction) -> None:
    i.parts.take("sync")
    i.parts.take("b32", "pred")
    names = ("ballot", "any", "all", "uni")
    condition, negated = i.condition(i.args[1])
    how = names.index(i.parts.take(*names))
    i.emit("vote", [i.dst(i.args[0])], [condition, i.src(i.args[2])], [how, negated])


def match(i: Instruction) -> None:
    i.parts.take("sync")
    kind = i.parts.last()
    every = i.parts.take("any", "all") == "all"
    targets = [i.dst(name) for name in i.args[0].split("|")]
    i.emit("match", targets, [i.src(arg) for arg in i.args[1:3]], [every, kind == "b64"])


def reduce(i: Instruction) -> None:
    i.parts.take("sync")
    signed = i.parts.last() == "s32"
    how = ("add", "min", "max", "and", "or", "xor").index(
        i.parts.take("add", "min", "max", "and", "or", "xor")
    )
    if signed and how in (1, 2):
        how += 5
    i.emit("redux", [i.dst(i.args[0])], [i.src(arg) for arg in i.args[1:3]], [how])


def elect(i: Instruction) -> None:
    i.parts.take("sync")
    targets = [i.dst(name) for name in i.args[0].split("|")]
    i.emit("elect", targets, [i.src(i.args[1])])


def bulk(i: Instruction) -> None:
    """cp.async.bulk in all its parts."""
    if not (i.parts.has("async") and i.parts.has("bulk")):
        raise i.unknown()
    if i.parts.has("commit_group"):
        return i.emit("bulk.commit", [], [])
    if i.parts.has("wait_group"):
        return i.emit("bulk.wait", [], [], [int(i.args[0], 0), i.parts.has("read")])
    _hints(i, 4 if "mbarrier::complete_tx::bytes" in i.parts.left else 3)
    ends = [part for part in i.parts.left if part in ("global", *SHARED_NAMES)]
    i.parts.drop("global|" + "|".join(SHARED_NAMES))
    if ends == ["global", "shared::cta"] and i.parts.has("bulk_group"):
        direction = 0
    elif ends[1:] == ["global"] and i.parts.has("mbarrier::complete_tx::bytes"):
        direction = 1
    else:
        raise i.unknown()
    (to, to_offset), (source, offset) = i.address(i.args[0]), i.address(i.args[1])
    sources, nums = [to, source, i.src(i.args[2])], [direction, to_offset, offset]
    if direction == 1:
        address, offset = i.address(i.args[3])
        sources.append(address)
        nums.append(offset)
    return i.emit("bulk.copy", [], sources, nums)


def mbarrier(i: Instruction) -> None:
    what = i.parts.take("init", "inval", "arrive", "expect_tx", "try_wait", "test_wait")
    i.parts.drop("b64")
    space = _space(i)
    order = i.parts.take("acquire", "release", "relaxed")
    if i.parts.take("cta", "cluster", "sys", default="cta") == "sys":
        raise i.unknown()
    if what in ("init", "inval"):
        base, offset = i.address(i.args[0])
        rest = [i.src(arg) for arg in i.args[1:]]
        return i.emit(f"mbarrier.{what}", [], [base, *rest], [space, offset])
    if what in ("try_wait", "test_wait"):
        base, offset = i.address(i.args[1])
        nums = [space, offset, i.parts.has("parity"), order != "relaxed"]
        return i.emit("mbarrier.wait", [i.dst(i.args[0])], [base, i.src(i.args[2])], nums)
    if what not in ("arrive", "expect_tx") or (order == "relaxed" and what == "arrive"):
        raise i.unknown()
    targets = [i.dst(i.args.pop(0))] if not i.args[0].startswith("[") else []
    base, offset = i.address(i.args[0])
    rest = [i.src(arg) for arg in i.args[1:]]
    expects = what == "expect_tx" or i.parts.has("expect_tx")
    nums = [space, offset, expects, bool(rest) and not expects, what == "expect_tx"]
    return i.emit("mbarrier.arrive", targets, [base, *rest], nums)


def convert_address(i: Instruction) -> None:
    i.parts.drop("u64|u32")
    to = i.parts.has("to")
    space = i.parts.take(*SHARED_NAMES, "global", "const", "param", "param::entry")
    which = 1 if space in SHARED_NAMES else 3 if space.startswith("param") else 0
    nums = [which + to if which else 0]
    i.emit("cvta", [i.dst(i.args[0])], [i.src(i.args[1])], nums)


def is_space(i: Instruction) -> None:
    space = i.parts.take("global", *SHARED_NAMES)
    if not space:
        raise i.unknown()
    i.emit("isspacep", [i.dst(i.args[0])], [i.src(i.args[1])], [space != "global"])


def branch(i: Instruction) -> None:
    i.parts.drop("uni")
    i.emit("bra", [], [])
    i.output.records[-1][3] = (i.scope, i.args[0], i)


def branch_index(i: Instruction) -> None:
    i.parts.drop("uni")
    i.parts.take("idx")
    if (names := i.scope.find("tables", i.args[1])) is None:
        raise i.unknown(f"no targets {i.args[1]}")
    begin = len(i.output.tables)
    i.output.tables += [(i.scope, name, i) for name in names]
    i.emit("brx", [], [i.src(i.args[0])], [begin, len(names)])


def simple(i: Instruction) -> None:
    """Instructions without a meaning here, or with one and no operands."""
    i.parts.left.clear()
    names = {"ret": "exit", "exit": "exit", "trap": "trap", "brkpt": "trap", "nanosleep": "pause"}
    i.emit(names.get(i.parts.name, "nop"), [], [])


def single(i: Instruction) -> None:
    """activemask, and policies for caches, which are never looked at."""
    i.parts.left.clear()
    name = "activemask" if i.parts.name == "activemask" else "zero"
    i.emit(name, [i.dst(i.args[0])], [])


FAMILIES = {
    "ld": load,
    "st": store,
    **dict.fromkeys(("atom", "red"), update),
    **dict.fromkeys(("fence", "membar"), fence),
    **dict.fromkeys(("bar", "barrier"), barrier),
    "shfl": shuffle,
    "vote": vote,
    "match": match,
    "redux": reduce,
    "elect": elect,
    "cp": bulk,
    "mbarrier": mbarrier,
    "call": call,
    "cvta": convert_address,
    "isspacep": is_space,
    "bra": branch,
    "brx": branch_index,
    **dict.fromkeys(("ret", "exit", "trap", "brkpt", "nanosleep", "griddepcontrol"), simple),
    **dict.fromkeys(("prefetch", "prefetchu"), simple),
    **dict.fromkeys(("activemask", "createpolicy"), single),
}
