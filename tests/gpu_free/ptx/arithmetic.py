"""Decodes arithmetic: which function of the engine executes it, and with which modifiers."""

from .operands import Instruction
from .parse import bits_of

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
FLOATS = ("f32", "f64")
HALVES = {"f16": (0, 1), "f16x2": (0, 2), "bf16": (1, 1), "bf16x2": (1, 2)}
ROUNDING = {"rn": 0, "rz": 1, "rm": 2, "rp": 3}
INTEGRAL = {"rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}
# Types as the engine's cvt numbers them.
TYPES = {
    name: code
    for code, name in enumerate(
        ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "bf16", "f32", "f64")
    )
} | {"b8": 0, "b16": 1, "b32": 2, "b64": 3}
PACKED = {"f16x2": (0, 16), "bf16x2": (1, 16), "e4m3x2": (2, 8), "e5m2x2": (3, 8)}
COMBINE = {"": 0, "and": 1, "or": 2, "xor": 3}
# fmt: off
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
               "leu", "gtu", "geu", "num", "nan")
# fmt: on
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def arithmetic(i: Instruction) -> None:
    """add, sub, mul, mad, fma, div, rem, min, max, neg, abs, rcp, sqrt, sad."""
    kind = i.parts.last()
    if i.parts.name in ("addc", "subc", "madc") or "cc" in i.parts.left:
        return _carried(i, kind)
    name = i.parts.name
    dst, src = [i.dst(i.args[0])], [i.src(arg) for arg in i.args[1:]]
    if kind in INTEGERS:
        mode = i.parts.take("lo", "hi", "wide") if name in ("mul", "mad", "mul24") else ""
        sat = "sat" if i.parts.has("sat") else ""
        return i.emit(".".join(filter(None, (name, sat, mode, kind))), dst, src)
    if kind in FLOATS:
        return _real(i, name, kind, dst, src)
    if kind in HALVES:
        i.parts.take("rn")
        # Subnormals of bf16 and f16 are kept: ptxas has no flush for bf16, and ours never asks.
        nums = [*HALVES[kind], i.parts.has("NaN"), i.parts.has("sat"), i.parts.has("relu")]
        return i.emit(f"half.{name}", dst, src, nums)
    raise i.unknown()


def _real(i: Instruction, name: str, kind: str, dst: list[int], src: list[int]) -> None:
    mode = i.parts.take(*ROUNDING)
    if name in ("div", "rcp", "sqrt") and not mode:
        raise i.unknown("an approximation")
    if name in ("min", "max") and len(src) == 3:
        name += "3"
    nums = [i.parts.has("ftz"), i.parts.has("sat"), ROUNDING[mode or "rn"], i.parts.has("NaN")]
    if name in ("neg", "abs") and nums[0]:
        raise i.unknown("flush")
    i.emit(f"{'fma' if name == 'mad' else name}.{kind}", dst, src, nums)


def _carried(i: Instruction, kind: str) -> None:
    reads, writes = i.parts.name.endswith("c"), i.parts.has("cc")
    name = i.parts.name.removesuffix("c")
    mode = f".{i.parts.take('lo', 'hi')}" if name == "mad" else ""
    if kind[1:] not in ("32", "64") or (mode == ".hi" and kind[0] == "s"):
        raise i.unknown()
    sources = [i.src(arg) for arg in i.args[1:]]
    i.emit(f"carry.{name}{mode}.{kind[1:]}", [i.dst(i.args[0])], sources, [reads, writes])


def logic(i: Instruction) -> None:
    """and, or, xor, not, cnot."""
    kind = i.parts.last()
    predicate = kind == "pred"
    sources = [i.src(arg, predicate) for arg in i.args[1:]]
    i.emit(f"{i.parts.name}.{kind.lstrip('bus')}", [i.dst(i.args[0])], sources)


def shift(i: Instruction) -> None:
    kind = i.parts.last()
    sign = "s" if kind.startswith("s") else "u"
    name = f"shl.{kind[1:]}" if i.parts.name == "shl" else f"shr.{sign}{kind[1:]}"
    i.emit(name, [i.dst(i.args[0])], [i.src(arg) for arg in i.args[1:]])


def bits(i: Instruction) -> None:
    """lop3, prmt, shf, bfe, bfi, popc, clz, brev, bfind, fns, bmsk, slct: names say it all."""
    kind = i.parts.last()
    name = i.parts.name
    sized = {"popc": "b", "clz": "b", "brev": "b", "bfi": "b"}
    if name in sized:
        name = f"{name}.{kind[1:]}"
    elif name == "shf":
        name = f"shf.{i.parts.take('l', 'r')}.{i.parts.take('wrap', 'clamp')}"
    elif name == "bfind":
        name = f"bfind.shiftamt.{kind}" if i.parts.has("shiftamt") else f"bfind.{kind}"
    elif name == "bfe":
        name = f"bfe.{kind}"
    elif name == "bmsk":
        name = f"bmsk.{i.parts.take('clamp')}"
    elif name == "slct":
        if kind != "s32":
            raise i.unknown()
        name = f"slct.{bits_of(i.parts.last())}"
    elif name == "dp4a":
        signs = (i.parts.last(), kind)
        sources = [i.src(arg) for arg in i.args[1:]]
        return i.emit(name, [i.dst(i.args[0])], sources, [sign == "s32" for sign in signs])
    return i.emit(name, [i.dst(i.args[0])], [i.src(arg) for arg in i.args[1:]])


def move(i: Instruction) -> None:
    kind = i.parts.last()
    to, source = i.vector(i.args[0]), i.vector(i.args[1])
    if len(to) > 1:
        size = bits_of(kind) // len(to)
        return i.emit("unpack", [i.dst(name) for name in to], [i.src(source[0])], [size])
    if len(source) > 1:
        size = bits_of(kind) // len(source)
        return i.emit("pack", [i.dst(to[0])], [i.src(name) for name in source], [size])
    if kind == "pred":
        return i.emit("mov.pred", [i.dst(to[0])], [i.src(source[0], predicate=True)])
    return i.emit(f"mov.{bits_of(kind)}", [i.dst(to[0])], [i.src(source[0])])


def select(i: Instruction) -> None:
    condition, negated = i.condition(i.args[3])
    a, b = i.src(i.args[1]), i.src(i.args[2])
    if negated:
        a, b = b, a
    i.emit(f"selp.{bits_of(i.parts.last())}", [i.dst(i.args[0])], [a, b, condition])


def compare(i: Instruction) -> None:
    """setp and set."""
    kind = i.parts.last()
    true = 0
    if i.parts.name == "set":
        if (to := i.parts.last()) not in ("u32", "s32", "f32"):
            raise i.unknown()
        true = 0x3F800000 if to == "f32" else 0xFFFFFFFF
    comparison = i.parts.take(*COMPARISONS)
    how = COMBINE[i.parts.take("and", "or", "xor")]
    if kind.startswith("b"):
        kind = f"u{kind[1:]}"
    name = UNSIGNED_NAMES.get(comparison, comparison)
    sources, negated = [i.src(arg) for arg in i.args[1:3]], 0
    if how:
        condition, negated = i.condition(i.args[3])
        sources.append(condition)
    targets = [i.dst(name) for name in i.args[0].split("|")]
    nums = [how, negated, i.parts.has("ftz"), true]
    i.emit(f"compare.{name}.{kind}", targets, sources, nums)


def convert(i: Instruction) -> None:
    source, target = i.parts.last(), i.parts.last()
    dst = [i.dst(i.args[0])]
    if target in PACKED and source == "f32":
        code, size = PACKED[target]
        mode, finite = ROUNDING[i.parts.take("rn", "rz")], i.parts.has("satfinite")
        if size == 8 and not finite:
            raise i.unknown()
        nums = [code, size, mode, finite, i.parts.has("relu")]
        return i.emit("cvt.pack", dst, [i.src(i.args[1]), i.src(i.args[2])], nums)
    if target in PACKED and source in PACKED:
        i.parts.take("rn")
        nums = [*PACKED[source], *PACKED[target], i.parts.has("satfinite")]
        return i.emit("cvt.pair", dst, [i.src(i.args[1])], nums)
    if source not in TYPES or target not in TYPES:
        raise i.unknown()
    mode, integral = i.parts.take(*ROUNDING), i.parts.take(*INTEGRAL)
    rounding = INTEGRAL[integral] if integral else ROUNDING[mode or "rn"]
    nums = [TYPES[source], TYPES[target], rounding, bool(integral)]
    nums += [i.parts.has("sat"), i.parts.has("ftz"), i.parts.has("relu")]
    return i.emit("cvt", dst, [i.src(i.args[1])], nums)


FAMILIES = {
    **dict.fromkeys(
        ("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "neg", "abs", "sad"),
        arithmetic,
    ),
    **dict.fromkeys(("rcp", "sqrt", "copysign", "mul24", "addc", "subc", "madc"), arithmetic),
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), logic),
    **dict.fromkeys(("shl", "shr"), shift),
    **dict.fromkeys(
        ("lop3", "prmt", "shf", "bfe", "bfi", "popc", "clz", "brev", "bfind", "fns", "bmsk"), bits
    ),
    **dict.fromkeys(("slct", "dp4a"), bits),
    "mov": move,
    "selp": select,
    **dict.fromkeys(("setp", "set"), compare),
    "cvt": convert,
}
