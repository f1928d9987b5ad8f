"""Every arithmetic instruction that the runner knows gives the bits that numpy gives."""

import shutil
import subprocess

import numpy as np
import ptx
import pytest
from ptx_table import BF16, F16, F32, F64, KIND, ROWS, Row

pytestmark = pytest.mark.timeout(300)  # the first test compiles the engine
COUNT = 512  # operands of each kind, of which the first are special
PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
PARAMS = ", ".join(f".param .u64 {name}_at" for name in "abcd")
REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def kernel(number: int, one: Row) -> str:
    """Loads the operands of its thread, executes the row's instructions, stores the result."""
    types = dict(zip("abc", one.types, strict=False)) | {"d": one.out}
    lines = [f".visible .entry k{number}({PARAMS}) {{", ".reg .b64 %at, %step;", ".reg .b32 %t;"]
    lines += [".reg .pred p, q;", ".reg .b32 n, m, lo, hi;", "mov.u32 %t, %tid.x;"]
    lines += [".reg .b32 %block;", "mov.u32 %block, %ctaid.x;", "mad.lo.u32 %t, %block, 256, %t;"]
    for name, kind in types.items():
        size = np.dtype(kind).itemsize
        lines += [f".reg .{REGISTER[size]} %{name};"]
        if name != "d":
            lines += [*address(name, size), f"ld.global.{loaded(kind)} %{name}, [%at];"]
    names = {name: f"%{name}" for name in types}
    lines += [f"{part.strip()};" for part in one.text.format(**names).split(";")]
    size = np.dtype(one.out).itemsize
    lines += [*address("d", size), f"st.global.b{8 * size} [%at], %d;", "ret;", "}"]
    return "\n".join(lines)


def address(name: str, size: int) -> list[str]:
    lines = [f"ld.param.u64 %at, [{name}_at];", f"mul.wide.u32 %step, %t, {size};"]
    return [*lines, "add.u64 %at, %at, %step;"]


def loaded(kind: type) -> str:
    name = KIND[kind]
    return f"b{8 * np.dtype(kind).itemsize}" if "f" in name else name


SOURCE = HEADER + "\n".join(kernel(number, one) for number, one in enumerate(ROWS))


def operands(kind: type, seed: int) -> np.ndarray:
    """Random bits, small numbers, and those at the edges."""
    random = np.random.default_rng(seed)
    size = np.dtype(kind).itemsize
    values = random.integers(0, 256, COUNT * size, dtype=np.uint8).view(kind)
    small = random.integers(0, 40, COUNT)
    if "f" not in KIND[kind]:
        limits = np.iinfo(kind)
        edges = np.array([0, 1, 2, 31, 32, 63, limits.max, limits.max - 1, limits.min], kind)
        values[100:200] = small[:100].astype(kind)
    else:
        numbers = [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 448, 464, 465, 480, 1e-3, 65504, np.nan]
        numbers += [np.inf, -np.inf, 1e-40, -1e-40, 3e38, 2**31, 2**32, 2**63, 0.00390625, 0.015625]
        with np.errstate(over="ignore"):
            edges = np.array(numbers, np.float64).astype(kind)
            values[100:200] = random.normal(0, 100, 100).astype(kind)
            values[200:300] = random.normal(0, 1, 100).astype(kind)
    pairs = random.integers(0, len(edges), 100)
    values[:100] = edges[pairs]
    return values


@pytest.fixture(scope="session")
def machine() -> ptx.Machine:
    return ptx.Machine(ptx.load(SOURCE), 1, 1, 1 << 25)


def computed(machine: ptx.Machine, number: int, inputs: list[np.ndarray], out: type) -> np.ndarray:
    addresses = []
    for i, values in enumerate(inputs):
        addresses.append(machine.alloc(0, values.nbytes, f"in{i}"))
        machine.array(addresses[-1], np.uint8, values.nbytes)[:] = values.view(np.uint8)
    addresses += [0] * (3 - len(inputs))
    addresses.append(machine.alloc(0, COUNT * np.dtype(out).itemsize, "out"))
    params = np.array(addresses, np.uint64).tobytes()
    machine.launch(0, f"k{number}", COUNT // 256, 256, 0, params)
    machine.run()
    return machine.array(addresses[-1], out, COUNT).copy()


@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda n: f"{n}-{ROWS[n]}")
def test_arithmetic(machine, number: int) -> None:
    one = ROWS[number]
    inputs = [operands(kind, 7 * i + number) for i, kind in enumerate(one.types)]
    with np.errstate(all="ignore"):
        wanted = np.asarray(one.meaning(*inputs))
    assert wanted.dtype == np.dtype(one.out)
    found = computed(machine, number, inputs, one.out)
    bits = f"u{np.dtype(one.out).itemsize}"
    same = found.view(bits) == wanted.view(bits)
    if one.out in (F16, BF16, F32, F64):
        with np.errstate(invalid="ignore"):
            same |= np.isnan(found.astype(F64)) & np.isnan(wanted.astype(F64))
    elif "x2.f32" in one.text:
        same |= np.isnan(inputs[0]) | np.isnan(inputs[1])
    at = np.flatnonzero(~same)[:3]
    assert not at.size, [(*(x[i] for x in inputs), found[i], wanted[i]) for i in at]


@pytest.mark.skipif(PTXAS is None, reason="no ptxas here to say whether the table is PTX")
def test_table_is_ptx(tmp_path) -> None:
    source = tmp_path / "table.ptx"
    source.write_text(SOURCE)
    command = [PTXAS, "-arch=sm_90a", source, "-o", tmp_path / "table.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


BRANCHES = """
.visible .entry k(.param .u64 out) {
.reg .b64 %at, %step; .reg .b32 %t, %r; .reg .pred %p;
mov.u32 %t, %tid.x; mul.wide.u32 %step, %t, 4; ld.param.u64 %at, [out]; add.u64 %at, %at, %step;
and.b32 %r, %t, 3;
ways: .branchtargets zero, one, two, one;
brx.idx %r, ways;
zero: mov.u32 %r, 10; bra.uni end;
one: mov.u32 %r, 20; setp.gt.u32 %p, %t, 16; @!%p bra end; mov.u32 %r, 21; bra end;
two: ret;
end: st.global.u32 [%at], %r;
}
"""


def test_branch_tables() -> None:
    machine = ptx.Machine(ptx.load(HEADER + BRANCHES), 1)
    out = machine.alloc(0, 128, "out")
    machine.launch(0, "k", 1, 32, 0, np.uint64(out).tobytes())
    machine.run()
    odd = [21 if thread > 16 else 20 for thread in range(32)]
    wanted = [{0: 10, 2: 0}.get(thread % 4, odd[thread]) for thread in range(32)]
    assert machine.array(out, np.uint32, 32).tolist() == wanted


NOT_KNOWN = [
    "ex2.approx.f32 %f1, %f2",
    "div.full.f32 %f1, %f2, %f2",
    "add.f32.made.up %f1, %f2, %f2",
    "ld.local.u32 %r1, [%r2]",
    "tcgen05.wait.ld.sync.aligned",
    "ld.global.v2.u32 {%r1, %r9}, [%r2]",
]


@pytest.mark.parametrize("text", NOT_KNOWN)
def test_unknown_instruction_is_named(text: str) -> None:
    source = f"{HEADER}.entry k() {{\n.reg .b32 %r<4>;\n.reg .f32 %f<4>;\n\n{text};\nret;\n}}\n"
    with pytest.raises(ptx.Unknown) as caught:
        ptx.load(source)
    assert text in str(caught.value)
    assert "line 8" in str(caught.value)


def test_parameters_are_laid_out() -> None:
    pointer, record = ".param .u64 .ptr .global .align 16 p", ".param .align 8 .b8 s[20]"
    params = f".param .u32 n, {pointer}, {record}, .param .u8 c"
    entry = ptx.load(f"{HEADER}.visible .entry k({params}) {{\nret;\n}}\n").entries["k"]
    places = {name: (param.offset, param.size) for name, param in entry.params.items()}
    assert places == {"n": (0, 4), "p": (8, 8), "s": (16, 20), "c": (36, 1)}
    assert entry.param_bytes == 37


def test_local_memory_is_unknown() -> None:
    with pytest.raises(ptx.Unknown, match="__local_depot0"):
        ptx.load(f"{HEADER}.entry k() {{\n.local .align 8 .b8 __local_depot0[16];\nret;\n}}\n")
