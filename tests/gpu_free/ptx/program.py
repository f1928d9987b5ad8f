"""From text to a program that a machine can run."""

import ctypes
import re
from dataclasses import dataclass

from . import arithmetic, effects
from .build import engine
from .operands import Instruction, Output
from .parse import Function, Module, Parameter, parse

FAMILIES = arithmetic.FAMILIES | effects.FAMILIES
NAMES = re.compile(r"[A-Za-z_$][\w$]*")


@dataclass(frozen=True)
class Entry:
    name: str
    params: dict[str, Parameter]
    static_shared: int  # bytes
    index: int

    @property
    def param_bytes(self) -> int:
        return max((param.offset + param.size for param in self.params.values()), default=0)


class Program:
    def __init__(self, text: str) -> None:
        module = parse(text)
        self.variables = [v for v in module.variables.values() if v.space != "shared"]
        self.entries: dict[str, Entry] = {}
        self.handle = engine().ptx_program()
        output = Output()
        for function in (f for f in module.functions if f.name):
            self._add(function, module, output)
        self._fill(output)

    def _add(self, function: Function, module: Module, output: Output) -> None:
        shared, static_shared = _lay_out_shared(function, module)
        symbols = shared | {v.name: (v.space, i) for i, v in enumerate(self.variables)}
        start = len(output.records)
        for statement in function.statements:
            if statement.is_label:
                statement.scope.labels[statement.text] = len(output.records)
            else:
                _decode(Instruction(statement, function, symbols, output))
        # Whoever runs past the last instruction has returned.
        end = function.statements[-1]
        end.text = "ret"
        _decode(Instruction(end, function, symbols, output))
        _resolve(output, start)
        index = len(self.entries)
        self.entries[function.name] = Entry(function.name, function.params, static_shared, index)
        engine().ptx_program_entry(
            self.handle, function.name.encode(), start, function.scope.most[0], static_shared
        )

    def _fill(self, output: Output) -> None:
        for text in output.texts:
            engine().ptx_program_text(self.handle, text.encode())
        records = output.numbers()
        constants = (ctypes.c_uint64 * len(output.constants))(*output.constants)
        tables = (ctypes.c_uint32 * len(output.tables))(*output.tables)
        engine().ptx_program_fill(
            self.handle,
            *(records.buffer_info()[0], len(output.records)),
            *(constants, len(constants), tables, len(tables)),
        )

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            engine().ptx_program_free(self.handle)


def load(text: str) -> Program:
    return Program(text)


def _decode(instruction: Instruction) -> None:
    decode = FAMILIES.get(instruction.parts.name)
    if decode is None:
        raise instruction.unknown()
    try:
        decode(instruction)
    except (IndexError, KeyError, ValueError) as error:
        raise instruction.unknown(str(error)) from error
    instruction.check()
    instruction.output.texts.append(instruction.statement.text)


def _resolve(output: Output, start: int) -> None:
    """Puts numbers where labels were named."""

    def number(place):
        if not isinstance(place, tuple):
            return place
        scope, name, instruction = place
        if (found := scope.find("labels", name)) is None:
            raise instruction.unknown(f"no label {name}")
        return found

    for record in output.records[start:]:
        record[3] = number(record[3])
    output.tables[:] = [number(place) for place in output.tables]


def _lay_out_shared(function: Function, module: Module) -> tuple[dict, int]:
    """Offsets of the shared variables that a kernel names; dynamic memory comes behind them."""
    named = {name for s in function.statements for name in NAMES.findall(s.text)}
    used = [v for v in module.variables.values() if v.space == "shared" and v.name in named]
    places, at = {}, 0
    for variable in sorted(used, key=lambda v: v.size == 0):
        at = (at + variable.align - 1) // variable.align * variable.align
        places[variable.name] = ("shared", at)
        at += variable.size
    return places, at
