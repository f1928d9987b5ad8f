"""Measures how far LogFMT is from what it was given: prints the table of docs/logfmt.md."""

import torch
from torch import Tensor

from deep_ll import reference

ROWS, HIDDEN = 8, 7168
LEAST = 2.0**-reference.LOG_RANGE


def inputs() -> dict[str, Tensor]:
    """Values as experts may give them, and heavier tails than that."""
    gen = torch.Generator().manual_seed(0)
    normal = torch.randn(ROWS, HIDDEN, generator=gen)
    others = torch.randn(2, ROWS, HIDDEN, generator=gen)
    uniform = torch.rand(ROWS, HIDDEN, generator=gen)
    return {
        "randn": normal,
        "0.1 * randn": 0.1 * normal,
        "Student t, 2 degrees of freedom": normal / (others.square().sum(dim=0) / 2).sqrt(),
        "Cauchy": normal / others[0],
        "log-normal, sigma 3": normal.sign() * (3 * others[0]).exp(),
        "2^uniform(-30, 30)": normal.sign() * 2.0 ** (60 * uniform - 30),
    }


def calc_diff(a: Tensor, b: Tensor) -> float:
    """DeepEP's measure."""
    a, b = a.double() + 1, b.double() + 1
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def errors(x: Tensor) -> tuple[float, float, float, float]:
    """calc_diff, root mean square relative to that of x, largest relative error, of amax."""
    given = x.bfloat16()
    got = reference.logfmt_decode(reference.logfmt_encode(given)).reshape(-1, reference.GROUP)
    want = given.float().reshape(-1, reference.GROUP)
    off, amax = (got - want).abs(), want.abs().amax(dim=1, keepdim=True)
    large = want.abs() >= LEAST * amax
    relative = float((off / want.abs())[large].max())
    small = (off / amax)[~large]
    rms = float((off.square().sum() / want.square().sum()).sqrt())
    return calc_diff(got, want), rms, relative, float(small.max()) if small.numel() else 0.0


def table() -> str:
    """As docs/logfmt.md shows it."""
    rows = [
        "| values | calc_diff | rms | relative error | of amax |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, x in inputs().items():
        diff, rms, relative, small = errors(x)
        rows.append(f"| {name} | {diff:.1e} | {rms:.2%} | {relative:.2%} | {small:.1e} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
