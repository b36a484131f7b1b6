#!/usr/bin/env python3
"""Look for what is slow or wrong on a GPU in a model's runs or a training step's, on a machine that has none.

    python scripts/lints.py MODEL.onnx                                    # a model, its inputs made of zeros
    python scripts/lints.py MODEL.onnx --dim batch=8 --inputs INPUTS.npz
    python scripts/lints.py transformer --level O2 --dtype bfloat16       # a training step of lab/programs/sizes.py
    python scripts/lints.py resnet50 --size shallow                       # with two blocks in a stage, or "small"
    python scripts/lints.py --list                                        # the lints: what they forbid, and why
    python scripts/lints.py MODEL.onnx --json                             # one JSON object: lint -> findings

Runs the model in a `Session`, or the step in an `Executor`, on ONNX Runtime's CUDA provider over stand-ins for CUDA's
libraries (`lab/launches.py` says what they need and what they cannot tell), and reads the first run, the third run
and the graphs that ONNX Runtime made. Each lint is a row of `LINTS`. Its prices were measured on an H100.

The exit status is 1 if there is a finding (0 with --json), 2 if a file or network does not exist or cannot be run, 3 if
this machine cannot count.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lab"))  # the stand-ins, and the networks by name

from amp_transpiler.errors import AmpError
from launches_libraries import under_stand_ins
from programs import linted
from programs.linted import Ran
from programs.sizes import NETWORKS, Network, shallow, small

__all__ = ["LINTS", "Lint", "findings"]

REFUSED = 2  # the exit status where nothing could be run
LEVELS = ("fp32", "O1", "O2")
SIZES: Mapping[str, Callable[[Network], Network]] = {
    "full": lambda network: network,
    "shallow": shallow,
    "small": small,
}

LONG = 1024  # elements of a row that one thread block may walk alone
MANY_ROWS = 2000  # dot products that keep a whole GPU busy
GFLOP = 10**9
ALIGNED = {"float16": 8, "bfloat16": 8, "float32": 4}  # elements in 16 bytes
LARGEST_KERNEL = 11  # of a convolution in a forward pass, such as AlexNet's
MANY_RESULTS = 64 * 8192  # of a convolution: blocks of threads for half of a GPU, each with 8192
MOVES = frozenset(
    "Cast Concat DequantizeLinear Expand Flatten Identity Pad Reshape Slice Split Squeeze Transpose Unsqueeze".split()
)


@dataclasses.dataclass(frozen=True)
class Lint:
    """Something that no run should do.

    Attributes:
        forbids: what.
        why: what it costs.
        find: yields where it happens: a shape, a kernel or a node.
    """

    forbids: str
    why: str
    find: Callable[[Ran], Iterator[str]]


def findings(ran: Ran) -> dict[str, list[str]]:
    """Return the findings of each lint by its name; an empty list where there are none."""
    return {name: list(lint.find(ran)) for name, lint in LINTS.items()}


# ---- the lints ----
def long_reductions(ran: Ran) -> Iterator[str]:
    """Yield the reductions of the third run that cuDNN computes over more than `LONG` elements."""
    for row in ran.steady["reductions"]:
        length = math.prod(row["from"]) // math.prod(row["to"])
        if length > LONG:
            shapes = f"{row['type']} {row['from']} to {row['to']}"
            yield f"cudnnReduceTensor, {row['operator']} of {shapes}, {length} elements{_times(row)}"


def uneven_memsets(ran: Ran) -> Iterator[str]:
    """Yield the memsets of the first and the third run if they differ."""
    first, steady = (counts["memset"]["count"] for counts in (ran.first, ran.steady))
    if first != steady:
        yield f"cudaMemset, {first} in the first run, {steady} in the third"


def host_copies(ran: Ran) -> Iterator[str]:
    """Yield the copies of the third run between host and device, except those of feeds."""
    fed = collections.Counter(ran.fed)
    for row in ran.steady["copies"]:
        expected = min(row["count"], fed[row["bytes"]]) if row["way"] == "HtoD" else 0
        fed[row["bytes"]] -= expected
        if row["count"] > expected:
            where = f"before {row['before']:.80}" if row["before"] else "after the last launch"
            yield f"{row['way']}, {row['bytes']} bytes {where}{_times({'count': row['count'] - expected})}"


def misaligned_products(ran: Ran) -> Iterator[str]:
    """Yield the large matrix products of the third run with a row that does not begin at a multiple of 16 bytes."""
    for row in ran.steady["products"]:
        flop = 2 * row["m"] * row["n"] * row["k"] * row["batch"]
        matrices = [(row[f"type_{matrix}"], row[f"ld{matrix}"]) for matrix in "abc"]
        if flop > GFLOP and any(leading % ALIGNED.get(kind, 1) for kind, leading in matrices):
            yield f"{_product(row)}, {flop / GFLOP:.1f} GFLOP{_times(row)}"


def long_dot_products(ran: Ran) -> Iterator[str]:
    """Yield the products of the third run that are dot products of few long rows."""
    for row in ran.steady["products"]:
        if row["m"] == row["n"] == 1 and row["k"] > LONG and 1 < row["batch"] < MANY_ROWS:
            yield f"{_product(row)}{_times(row)}"


def huge_kernels(ran: Ran) -> Iterator[str]:
    """Yield the convolutions of few results with a large kernel that is computed: the gradient of a plane is one."""
    for graph in ran.graphs:
        for node in graph.graph.all_nodes():
            if node.op_type not in ("Conv", "FusedConv", "NhwcConv"):
                continue
            kernel = _kernel(node)
            known = bool(kernel) and min(kernel) > 0
            is_small = known and max(kernel) <= LARGEST_KERNEL
            if is_small or math.prod(_shape(node.outputs[0])) >= MANY_RESULTS:
                continue
            if _computed(node.inputs[1]):
                size = kernel if known else "of unknown size"
                shapes = f"kernel {size}, {_shape(node.inputs[0])} to {_shape(node.outputs[0])}"
                yield f"{node.op_type} {node.name or node.outputs[0].name}, {shapes}"


def _product(row: Mapping[str, Any]) -> str:
    leading = ", ".join(f"ld{matrix} {row[f'ld{matrix}']}" for matrix in "abc")
    batch = f", batch {row['batch']}" if row["batch"] > 1 else ""
    return f"{row['type_a']} product m {row['m']}, n {row['n']}, k {row['k']}{batch}, {leading}"


def _times(row: Mapping[str, Any]) -> str:
    return f", {row['count']} times" if row["count"] > 1 else ""


def _kernel(node: ir.Node) -> list[int]:
    """Return the sizes of a convolution's kernel; empty where nothing tells them."""
    written = node.attributes.get("kernel_shape")
    return list(written.as_ints()) if written is not None else _shape(node.inputs[1])[2:]


def _shape(value: ir.Value | None) -> list[int]:
    """Return a value's shape, 0 for a size that is not fixed; empty where none is known."""
    shape = None if value is None else value.shape
    return [size if isinstance(size, int) else 0 for size in shape or ()]


def _computed(value: ir.Value | None) -> bool:
    """Return whether a value is computed in the run: a parameter that is only moved or cast is not."""
    waiting, seen = [value], set()
    while waiting:
        node = None if (value := waiting.pop()) is None else value.producer()
        if node is None or node in seen:
            continue
        if node.op_type not in (*MOVES, "Constant"):
            return True
        seen.add(node)
        waiting += node.inputs
    return False


LINTS: Mapping[str, Lint] = {
    "long reduction": Lint(
        f"a reduction by cuDNN over more than {LONG} elements",
        "cuDNN walks a row one element after the other, about 100 ns each: the maximum of [4096, 30522] took 3.6 ms, "
        "and in float16 500 MB for a float32 copy. ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, "
        "ReduceLogSumExp and ArgMax always go there, and ReduceSum does for axes in the middle",
        long_reductions,
    ),
    "uneven memsets": Lint(
        "another number of memsets in the third run than in the first",
        "with fuse_conv_bias=1 only the first run clears what a convolution adds to: later results had errors of 6e16",
        uneven_memsets,
    ),
    "host copy": Lint(
        "a copy between host and device within a run, except of feeds and fetches",
        "a node on the CPU; a product of a 2-D and a 3-D tensor, which uploads three lists of pointers in each run; a "
        "Split into unequal parts, which uploads their sizes. The device may wait for the host. No price was measured",
        host_copies,
    ),
    "misaligned product": Lint(
        "a matrix product above 1 GFLOP with a leading dimension that is no multiple of 8 (16-bit) or of 4 (float32)",
        "the fast kernels load 16 bytes at a time. The three products with a vocabulary of 30522 took 2.5 ms in "
        "float16 and 4.8 in float32; with 30528, 1.0 and 1.9 are estimated",
        misaligned_products,
    ),
    "long dot product": Lint(
        f"fewer than {MANY_ROWS} dot products of more than {LONG} elements in one batch",
        "each row runs in one thread block, 11 ps an element in any type: 0.84 ms for 256 rows of 262144 elements. A "
        "quarter of it is estimated for the same in 16384 shorter rows",
        long_dot_products,
    ),
    "huge kernel": Lint(
        f"a convolution with a computed kernel above {LARGEST_KERNEL} and fewer than {MANY_RESULTS} results",
        "the gradient of a weight as a convolution with a whole plane for a kernel: 3 to 5 thread blocks on 132 "
        "processors, 2.5 ms each for planes of 56 x 56; with many outputs, as for planes of 14 x 14, less is lost",
        huge_kernels,
    ),
}


# ---- the command ----
def _table() -> str:
    return "\n".join(f"{name}\n    forbids: {lint.forbids}\n    why: {lint.why}" for name, lint in LINTS.items())


def _told(reports: Mapping[str, Iterable[str]]) -> str:
    lines = [f"{name}: {where}" for name, places in reports.items() for where in places]
    return "\n".join(lines) or "no finding"


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _size(text: str) -> tuple[str, int]:
    name, value = _pair(text)
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}")
    return name, int(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", help=f"an ONNX file, or a network: {', '.join(NETWORKS)}")
    parser.add_argument("--level", choices=LEVELS, default="fp32", help="of a training step (%(default)s)")
    parser.add_argument(
        "--dtype", choices=("float16", "bfloat16"), default="float16", help="of O1 and O2 (%(default)s)"
    )
    parser.add_argument("--size", choices=SIZES, default="full", help="of a network (%(default)s)")
    parser.add_argument("--inputs", metavar="NPZ", help="an array for each input of the model; zeros unless given")
    parser.add_argument("--dim", type=_size, action="append", default=[], metavar="NAME=N", help="a size of zeros (1)")
    parser.add_argument(
        "--providers-option", type=_pair, action="append", default=[], metavar="K=V", help="an option of the provider"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object: lint -> findings")
    parser.add_argument("--list", action="store_true", help="print the lints, and run nothing")
    return parser


def _run(options: argparse.Namespace) -> Ran:
    if options.what in NETWORKS:
        return linted.step(SIZES[options.size](NETWORKS[options.what]), options.level, options.dtype)
    arrays = None
    if options.inputs:
        with np.load(options.inputs, allow_pickle=False) as file:
            arrays = dict(file)
    return linted.model(options.what, arrays, dict(options.dim), dict(options.providers_option))


def main() -> int:
    """Start again on the stand-ins, run, and print the findings."""
    parser = _parser()
    options = parser.parse_args()
    if options.list:
        print(_table())
        return 0
    if options.what is None:
        parser.error("name an ONNX file or a network")
    if options.what not in NETWORKS and not pathlib.Path(options.what).is_file():
        parser.error(f"{options.what} is no file, and no network: these are {', '.join(NETWORKS)}")
    if not under_stand_ins():
        here = pathlib.Path(__file__).resolve()
        launches = here.parents[1] / "lab" / "launches.py"
        command = [sys.executable, str(launches), "run", str(here), *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606  no shell is wanted: the arguments are the user's
    try:
        ran = _run(options)
    except AmpError as error:
        print(f"lints.py: {error}", file=sys.stderr)
        return REFUSED
    reports = findings(ran)
    print(json.dumps(reports) if options.json else _told(reports), flush=True)
    return 0 if options.json else int(any(reports.values()))


if __name__ == "__main__":
    sys.exit(main())
