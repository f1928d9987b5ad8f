"""Instructions as records of numbers, and the operands in them: registers, constants, addresses."""

import re
from array import array
from dataclasses import dataclass, field

from .build import handler
from .errors import Unknown
from .parse import Function, Register, Scope, Statement, literal

NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+)U?$")
SPECIAL = {
    **{f"%{name}.{axis}": 3 * i + k for i, name in enumerate(("tid", "ntid", "ctaid", "nctaid"))
       for k, axis in enumerate("xyz")},
    "%laneid": 12, "%warpid": 13, "%smid": 14, "%nsmid": 15, "%globaltimer": 16,
    "%globaltimer_lo": 17, "%clock": 18, "%clock64": 18, "%lanemask_eq": 19, "%lanemask_lt": 20,
    "%lanemask_le": 21, "%lanemask_gt": 22, "%lanemask_ge": 23, "%gridid": 24,
    "%dynamic_smem_size": 25, "%total_smem_size": 26, "%nwarpid": 28, "%globaltimer_hi": 29,
}  # fmt: skip
SYMBOL = 27
SHARED_START = 1024  # kSharedStart of the engine
WORD = 2**64 - 1
SINK = 0  # the register slot for results that nobody wants


class Parts:
    """The dotted parts of an operation. Each must be taken by somebody, or it is unknown."""

    def __init__(self, operation: str) -> None:
        self.name, *self.left = operation.split(".")

    def take(self, *names: str, default: str = "") -> str:
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return name
        return default

    def has(self, name: str) -> bool:
        return bool(self.take(name))

    def drop(self, pattern: str) -> None:
        self.left = [part for part in self.left if not re.fullmatch(pattern, part)]

    def last(self) -> str:
        return self.left.pop() if self.left else ""


@dataclass
class Output:
    """A program in the making: what the engine will be given."""

    records: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)
    tables: list[int] = field(default_factory=list)

    def constant(self, value: int) -> int:
        return ~self.constants.setdefault(value & WORD, len(self.constants))

    def numbers(self) -> array:
        return array("q", [number for record in self.records for number in record])


def split(text: str) -> list[str]:
    """Operands between commas that are in no bracket."""
    parts, depth, held = [], 0, ""
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth == 0:
            parts.append(held.strip())
            held = ""
        else:
            held += char
    return [*parts, held.strip()] if held.strip() else parts


class Instruction:
    """One instruction on its way to a record; families of instructions fill it in."""

    def __init__(self, statement: Statement, function: Function, symbols: dict, output: Output):
        self.statement, self.function, self.output = statement, function, output
        self.scope: Scope = statement.scope
        self.symbols = symbols  # module variables: shared ones as offsets, others as indices
        self.guard, self.negated = -1, 0
        text = statement.text
        if (guard := re.match(r"@(!?)([\w$%]+)\s+", text)) is not None:
            self.guard = self.register(guard[2]).slot
            self.negated = int(guard[1] == "!")
            text = text[guard.end() :]
        operation, _, rest = text.partition(" ")
        self.parts = Parts(operation)
        self.args = split(rest)

    def unknown(self, why: str = "") -> Unknown:
        reason = f" ({why})" if why else ""
        return Unknown(f"line {self.statement.line}: {self.statement.text}{reason}")

    def register(self, name: str) -> Register:
        found = self.scope.find("registers", name)
        if found is None:
            raise self.unknown(f"no register {name}")
        return found

    def dst(self, name: str) -> int:
        return SINK if name == "_" else self.register(name).slot

    def src(self, name: str, predicate: bool = False) -> int:
        """The slot of a register, or a constant; special registers are read into a new slot."""
        if (found := self.scope.find("registers", name)) is not None:
            return found.slot
        if NUMBER.match(name):
            value = literal(name)
            return self.output.constant(WORD if predicate and value else value)
        if name == "WARP_SZ":
            return self.output.constant(32)
        if name in SPECIAL:
            return self.prelude(SPECIAL[name])
        base, _, offset = name.partition("+")
        return self.symbol(base.strip(), literal(offset.strip()) if offset else 0)

    def symbol(self, name: str, offset: int) -> int:
        if name in self.function.params:
            return self.output.constant(self.function.params[name].offset + offset)
        if name not in self.symbols:
            raise self.unknown(f"{name} is not known")
        space, value = self.symbols[name]
        if space == "shared":
            return self.output.constant(SHARED_START + value + offset)
        if offset:
            raise self.unknown("an offset of a variable")
        return self.prelude(SYMBOL, value)

    def prelude(self, which: int, value: int = 0) -> int:
        """Reads a special register before the instruction."""
        slot = self.scope.declare(f"special {which} {value}", 64).slot
        guard, self.guard = self.guard, -1
        self.emit("special", [slot], [], [which, value])
        self.guard = guard
        return slot

    def address(self, text: str) -> tuple[int, int]:
        """The base of `[base+offset]` as an operand, and the offset."""
        inside = text.strip("[]").strip()
        match = re.fullmatch(r"([\w$%.]+)\s*(?:\+\s*(-?\w+))?", inside)
        if not text.startswith("[") or match is None:
            raise self.unknown(f"address {text}")
        offset = literal(match[2]) if match[2] else 0
        return self.src(match[1]), offset - 2**64 if offset >= 2**63 else offset

    def vector(self, text: str) -> list[str]:
        return split(text.strip("{}")) if text.startswith("{") else [text]

    def condition(self, text: str) -> tuple[int, int]:
        """A predicate operand, and whether it is negated."""
        return self.src(text.lstrip("!"), predicate=True), int(text.startswith("!"))

    def emit(self, name: str, dst: list[int], src: list[int], nums=(), target: int = 0) -> None:
        if not (code := handler(name)):
            raise self.unknown()
        if len(dst) > 4 or len(src) > 8:
            raise self.unknown("too many operands")
        self.output.records.append(
            [
                *(code, self.guard, self.negated, target, len(self.output.texts)),
                *(len(dst), len(src)),
                *(dst + [SINK] * 4)[:4],
                *(src + [SINK] * 8)[:8],
                *([int(num) for num in nums] + [0] * 7)[:7],
            ]
        )

    def check(self) -> None:
        """Every part of the operation must have meant something."""
        if self.parts.left:
            raise self.unknown("." + ", .".join(self.parts.left))
