"""Instructions and what they mean, in numpy: one row for each kind that nvcc emits."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
S8, S16, S32, S64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
KIND = {
    U8: "u8", U16: "u16", U32: "u32", U64: "u64", S8: "s8", S16: "s16", S32: "s32", S64: "s64",
    F16: "f16", BF16: "bf16", F32: "f32", F64: "f64",
}  # fmt: skip
INTEGERS = (U16, U32, U64, S16, S32, S64)


@dataclass(frozen=True)
class Row:
    """`{d}`, `{a}`, `{b}`, `{c}` stand for registers of the types named."""

    text: str
    out: type
    types: tuple[type, ...]
    meaning: Callable

    def __str__(self) -> str:
        return self.text.split("{")[0].strip() + f" {KIND[self.out]}"


def row(text: str, out: type, types: list[type], meaning: Callable) -> Row:
    operands = ", ".join("{" + name + "}" for name in "abc"[: len(types)])
    return Row(f"{text} {{d}}, {operands}" if "{" not in text else text, out, tuple(types), meaning)


def as_int(values: np.ndarray) -> list[int]:
    return [int(value) for value in values]


def exact(function: Callable, out: type) -> Callable:
    """Of Python's own integers, then cut to size."""
    bits = np.dtype(out).itemsize * 8

    def meaning(*operands: np.ndarray) -> np.ndarray:
        results = [
            function(*values) & (1 << bits) - 1
            for values in zip(*map(as_int, operands), strict=True)
        ]
        return np.array(results, f"u{bits // 8}").view(out)

    return meaning


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - b * quotient(a, b)


def integer_rows() -> list[Row]:
    rows = []
    plain = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b,
        "div": quotient, "rem": remainder, "min": min, "max": max,
    }  # fmt: skip
    for kind in INTEGERS:
        name, bits = KIND[kind], np.dtype(kind).itemsize * 8
        for op, function in plain.items():
            rows.append(row(f"{op}.{name}", kind, [kind] * 2, exact(function, kind)))
        high = exact(lambda a, b, n=bits: a * b >> n, kind)
        rows.append(row(f"mul.hi.{name}", kind, [kind] * 2, high))
        three = [kind] * 3
        rows.append(row(f"mad.lo.{name}", kind, three, exact(lambda a, b, c: a * b + c, kind)))
        if bits < 64:
            twice = {16: (U32, S32), 32: (U64, S64)}[bits][name[0] == "s"]
            product = exact(lambda a, b: a * b, twice)
            rows.append(row(f"mul.wide.{name}", twice, [kind] * 2, product))
            total = exact(lambda a, b, c: a * b + c, twice)
            rows.append(row(f"mad.wide.{name}", twice, [kind, kind, twice], total))
        if name[0] == "s":
            rows.append(row(f"neg.{name}", kind, [kind], exact(lambda a: -a, kind)))
            rows.append(row(f"abs.{name}", kind, [kind], exact(abs, kind)))
    rows.append(row("sad.s32", S32, [S32] * 3, exact(lambda a, b, c: abs(a - b) + c, S32)))
    clamp = exact(lambda a, b: max(-(2**31), min(2**31 - 1, a + b)), S32)
    rows.append(row("add.sat.s32", S32, [S32] * 2, clamp))
    return rows


def carry_rows() -> list[Row]:
    add = "add.cc.u32 lo, {a}, {b}; addc.u32 {d}, {a}, 5"
    sub = "sub.cc.u32 lo, {a}, {b}; subc.u32 {d}, {a}, 5"
    mad = "mad.lo.cc.u32 lo, {a}, {b}, {c}; madc.hi.u32 {d}, {a}, {b}, 0"
    return [
        row(add, U32, [U32] * 2, exact(lambda a, b: a + 5 + (a + b >> 32), U32)),
        row(sub, U32, [U32] * 2, exact(lambda a, b: a - 5 - (a < b), U32)),
        row(mad, U32, [U32] * 3, exact(lambda a, b, c: a * b + c >> 32, U32)),
    ]


def field(a: int, at: int, length: int, bits: int, signed: bool) -> int:
    a, at, length = a & (1 << bits) - 1, at & 255, length & 255
    taken = a >> at & (1 << length) - 1
    if signed and length:
        sign = a >> min(at + length - 1, bits - 1) & 1
        return taken | (-1 << min(length, max(bits - at, 0)) if sign else 0)
    return taken


def merge(a: int, b: int, at: int, length: int, bits: int) -> int:
    at, length = at & 255, length & 255
    mask = ((1 << length) - 1) << at & (1 << bits) - 1
    return b & ~mask | a << at & mask


def permuted(a: int, b: int, select: int) -> int:
    both, out = b << 32 | a, 0
    for i in range(4):
        nibble = select >> 4 * i & 15
        byte = both >> 8 * (nibble & 7) & 255
        out |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * i
    return out


def top_bit(a: int) -> int:
    return (a if a >= 0 else ~a).bit_length() - 1


def logic_rows() -> list[Row]:
    rows = []
    for kind, bits in ((U16, 16), (U32, 32), (U64, 64)):
        for op, function in {
            "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
        }.items():  # fmt: skip
            rows.append(row(f"{op}.b{bits}", kind, [kind] * 2, exact(function, kind)))
        rows.append(row(f"not.b{bits}", kind, [kind], exact(lambda a: ~a, kind)))
        by = "and.b32 n, {b}, 127; "
        left = exact(lambda a, b: a << (b & 127), kind)
        right = exact(lambda a, b: a >> (b & 127), kind)
        rows.append(row(by + f"shl.b{bits} {{d}}, {{a}}, n", kind, [kind, U32], left))
        rows.append(row(by + f"shr.u{bits} {{d}}, {{a}}, n", kind, [kind, U32], right))
        signed = {16: S16, 32: S32, 64: S64}[bits]
        right = exact(lambda a, b: a >> (b & 127), signed)
        rows.append(row(by + f"shr.s{bits} {{d}}, {{a}}, n", signed, [signed, U32], right))
    return rows


def field_rows() -> list[Row]:
    rows = []
    for kind, bits in ((U32, 32), (S32, 32), (U64, 64), (S64, 64)):
        name, signed = KIND[kind], kind in (S32, S64)
        by = "and.b32 n, {b}, 63; and.b32 m, {c}, 31; "
        cut = exact(lambda a, b, c, n=bits, s=signed: field(a, b & 63, c & 31, n, s), kind)
        rows.append(row(by + f"bfe.{name} {{d}}, {{a}}, n, m", kind, [kind, U32, U32], cut))
        rows.append(row(f"bfind.{name}", U32, [kind], exact(top_bit, U32)))
    for kind, bits in ((U32, 32), (U64, 64)):
        put = exact(lambda a, b, c, n=bits: merge(a, b, c & 31, 9, n), kind)
        text = f"and.b32 n, {{c}}, 31; bfi.b{bits} {{d}}, {{a}}, {{b}}, n, 9"
        rows.append(row(text, kind, [kind, kind, U32], put))
        rows.append(row(f"popc.b{bits}", U32, [kind], exact(int.bit_count, U32)))
        leading = exact(lambda a, n=bits: n - a.bit_length(), U32)
        rows.append(row(f"clz.b{bits}", U32, [kind], leading))
        turned = exact(lambda a, n=bits: int(f"{a:0{n}b}"[::-1], 2), kind)
        rows.append(row(f"brev.b{bits}", kind, [kind], turned))
    return rows


def word_rows() -> list[Row]:
    rows = []
    rows.append(row("prmt.b32", U32, [U32] * 3, exact(permuted, U32)))
    majority = exact(lambda a, b, c: a & b | a & c | b & c, U32)
    rows.append(row("lop3.b32 {d}, {a}, {b}, {c}, 0xE8", U32, [U32] * 3, majority))
    wrap = exact(lambda a, b, c: (b << 32 | a) << (c & 31) >> 32, U32)
    rows.append(row("shf.l.wrap.b32", U32, [U32] * 3, wrap))
    clamp = exact(lambda a, b, c: (b << 32 | a) >> min(c, 32), U32)
    rows.append(row("shf.r.clamp.b32", U32, [U32] * 3, clamp))
    swap = "mov.b64 {{lo, hi}}, {a}; mov.b64 {d}, {{hi, lo}}"
    rows.append(row(swap, U64, [U64], exact(lambda a: a >> 32 | a << 32, U64)))
    dot = exact(
        lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4)), U32
    )
    rows.append(row("dp4a.u32.u32", U32, [U32] * 3, dot))
    return rows


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """f32 with one rounding: the product is exact in long double, the sum nearly always."""
    wide = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    return wide.astype(F32)


def picked(function: Callable) -> Callable:
    """min or max with -0 below +0; a NaN loses."""

    def meaning(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        zeros = (a == 0) & (b == 0)
        signed = np.where(np.signbit(a) == (function is np.fmin), a, b)
        return np.where(zeros, signed, function(a, b))

    return meaning


def propagating(function: Callable) -> Callable:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, picked(function)(a, b))


def float_rows() -> list[Row]:
    rows = []
    for kind in (F32, F64):
        name, two = KIND[kind], [kind] * 2
        for op, function in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        }.items():  # fmt: skip
            rows.append(row(f"{op}.rn.{name}", kind, two, function))
        rows += [
            row(f"rcp.rn.{name}", kind, [kind], lambda a: (1 / a).astype(a.dtype)),
            row(f"sqrt.rn.{name}", kind, [kind], np.sqrt),
            row(f"neg.{name}", kind, [kind], np.negative),
            row(f"abs.{name}", kind, [kind], np.abs),
            row(f"min.{name}", kind, two, picked(np.fmin)),
            row(f"max.{name}", kind, two, picked(np.fmax)),
        ]
    rows += [
        row("fma.rn.f32", F32, [F32] * 3, fused),
        row("max.NaN.f32", F32, [F32] * 2, lambda a, b: propagating(np.fmax)(a, b).astype(F32)),
        row("min.NaN.f32", F32, [F32] * 2, lambda a, b: propagating(np.fmin)(a, b).astype(F32)),
        row("add.sat.f32", F32, [F32] * 2, lambda a, b: np.fmin(np.fmax(a + b, 0), 1).astype(F32)),
        row("mul.ftz.f32", F32, [F32] * 2, lambda a, b: flush(flush(a) * flush(b))),
    ]
    return rows


def flush(a: np.ndarray) -> np.ndarray:
    return np.where(np.abs(a) < np.finfo(F32).tiny, np.copysign(F32(0), a), a).astype(F32)


def fused_once(kind: type) -> Callable:
    """a * b + c with one rounding; ml_dtypes rounds from double to bf16 by way of f32."""

    def one(a: float, b: float, c: float) -> np.generic:
        near = np.array([a * b + c], F64).astype(kind)
        total = Fraction(a) * Fraction(b) + Fraction(c) if np.isfinite([a, b, c]).all() else 0
        if total == 0 or not np.isfinite(near.astype(F64))[0]:
            return near[0]
        around = (near.view(U16) + np.array([-1, 0, 1], S16).view(U16)).view(kind)
        finite = [value for value in around if np.isfinite(float(value))]
        return min(finite, key=lambda v: (abs(Fraction(float(v)) - total), int(v.view(U16)) & 1))

    def meaning(*args: np.ndarray) -> np.ndarray:
        return np.array([one(*map(float, values)) for values in zip(*args, strict=True)], kind)

    return meaning


def half_rows() -> list[Row]:
    rows = []
    for kind in (F16, BF16):
        name = KIND[kind]

        def once(function: Callable, kind=kind) -> Callable:
            return lambda *args: function(*(arg.astype(F64) for arg in args)).astype(kind)

        rows += [
            row(f"add.{name}", kind, [kind] * 2, once(np.add)),
            row(f"mul.{name}", kind, [kind] * 2, once(np.multiply)),
            row(f"fma.rn.{name}", kind, [kind] * 3, fused_once(kind)),
            row(f"max.{name}", kind, [kind] * 2, once(picked(np.fmax))),
            row(f"abs.{name}", kind, [kind], once(np.abs)),
            row(f"neg.{name}", kind, [kind], once(np.negative)),
        ]
    return rows


def pair_rows() -> list[Row]:
    rows = []
    for kind, name in ((F16, "f16x2"), (BF16, "bf16x2")):

        def both(function: Callable, kind=kind) -> Callable:
            def meaning(*args: np.ndarray) -> np.ndarray:
                wide = (arg.view(kind).astype(F64) for arg in args)
                made = function(*wide).astype(kind).view(U16)
                nan = 0x7FFF  # the one NaN that a GPU makes
                return np.where(np.isnan(made.view(kind)), U16(nan), made).view(U32)

            return meaning

        rows += [
            row(f"add.{name}", U32, [U32] * 2, both(np.add)),
            row(f"max.{name}", U32, [U32] * 2, both(picked(np.fmax))),
            row(f"max.NaN.{name}", U32, [U32] * 2, both(propagating(np.fmax))),
            row(f"fma.rn.{name}", U32, [U32] * 3, both(fused_once(kind))),
        ]
    absolute = exact(lambda a: a & 0x7FFF7FFF, U32)
    rows.append(row("abs.bf16x2", U32, [U32], absolute))
    rows.append(row("neg.bf16x2", U32, [U32], exact(lambda a: a ^ 0x80008000, U32)))
    return rows


COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def compare_rows() -> list[Row]:
    rows = []

    def add(name: str, kind: type, function: Callable) -> None:
        text = f"setp.{name}.{KIND[kind]} p, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, p"
        rows.append(row(text, U32, [kind] * 2, lambda a, b: function(a, b).astype(U32)))

    for kind in (*INTEGERS, F32, F64):
        for name, function in COMPARISONS.items():
            ordered = kind in (F32, F64) and name == "ne"
            add(name, kind, (lambda a, b: (a < b) | (a > b)) if ordered else function)
    for name, function in COMPARISONS.items():
        unordered = lambda a, b, f=function: f(a, b) | np.isnan(a) | np.isnan(b)  # noqa: E731
        add(f"{name}u", F32, unordered)
    add("num", F32, lambda a, b: ~(np.isnan(a) | np.isnan(b)))
    add("nan", F32, lambda a, b: np.isnan(a) | np.isnan(b))
    both = "setp.lt.u32 q, {a}, {c}; setp.gt.and.u32 p|q, {a}, {b}, !q; "
    pick = "selp.u32 {d}, 2, 0, p; selp.u32 n, 1, 0, q; add.u32 {d}, {d}, n"
    meaning = lambda a, b, c: (2 * ((a > b) & ~(a < c)) + ((a <= b) & ~(a < c))).astype(U32)  # noqa: E731
    rows.append(row(both + pick, U32, [U32] * 3, meaning))
    set_text = "set.lt.u32.s32 {d}, {a}, {b}"
    rows.append(row(set_text, U32, [S32] * 2, lambda a, b: np.where(a < b, U32(2**32 - 1), U32(0))))
    return rows


def to_integer(rounding: Callable, out: type) -> Callable:
    limits = np.iinfo(out)

    def meaning(a: np.ndarray) -> np.ndarray:
        results = []
        for value in rounding(a.astype(F64)):
            whole = 0 if np.isnan(value) else max(min(value, 2.0**70), -(2.0**70))
            results.append(max(limits.min, min(limits.max, int(whole))))
        return np.array(results, out)

    return meaning


def narrowed(kind: type) -> Callable:
    return lambda a: a.astype(kind)


def packed(kind: type, word: type, finite: float | None = None) -> Callable:
    def meaning(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = np.dtype(word).itemsize * 4
        parts = [(x if finite is None else clip(x, finite)).astype(kind) for x in (a, b)]
        high, low = (one.view(f"u{bits // 8}").astype(word) for one in parts)
        return high << word(bits) | low

    return meaning


def clip(a: np.ndarray, finite: float) -> np.ndarray:
    return np.where(np.isnan(a), F32(np.nan), np.clip(a, -finite, finite)).astype(F32)


def convert_rows() -> list[Row]:
    rows = []
    for source in (*INTEGERS, S8, U8):
        for target in (*INTEGERS, S8, U8):
            if source is not target:
                text = f"cvt.{KIND[target]}.{KIND[source]}"
                rows.append(row(text, target, [source], narrowed(target)))
    for source in (U32, S32, U64, S64):
        for target in (F32, F64):
            text = f"cvt.rn.{KIND[target]}.{KIND[source]}"
            rows.append(row(text, target, [source], narrowed(target)))
    modes = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    for mode, rounding in modes.items():
        for target in (U32, S32, U64, S64):
            text = f"cvt.{mode}.{KIND[target]}.f32"
            rows.append(row(text, target, [F32], to_integer(rounding, target)))
        rows.append(row(f"cvt.{mode}.f32.f32", F32, [F32], rounding))
    clamp = exact(lambda a: max(-128, min(127, a)), S8)
    rows += [
        row("cvt.sat.s8.s32", S8, [S32], clamp),
        row("cvt.sat.f32.f32", F32, [F32], lambda a: np.fmin(np.fmax(a, 0), 1).astype(F32)),
        row("cvt.f64.f32", F64, [F32], narrowed(F64)),
        row("cvt.rn.f32.f64", F32, [F64], narrowed(F32)),
        row("cvt.rn.f16.f32", F16, [F32], narrowed(F16)),
        row("cvt.f32.f16", F32, [F16], narrowed(F32)),
        row("cvt.rn.bf16.f32", BF16, [F32], narrowed(BF16)),
        row("cvt.f32.bf16", F32, [BF16], narrowed(F32)),
        row("cvt.rn.bf16x2.f32", U32, [F32] * 2, packed(BF16, U32)),
        row("cvt.rn.f16x2.f32", U32, [F32] * 2, packed(F16, U32)),
        row("cvt.rn.satfinite.e4m3x2.f32", U16, [F32] * 2, packed(E4M3, U16, 448.0)),
    ]
    return rows


ROWS = [
    *integer_rows(), *carry_rows(), *logic_rows(), *field_rows(), *word_rows(), *float_rows(),
    *half_rows(), *pair_rows(), *compare_rows(), *convert_rows(),
]  # fmt: skip
