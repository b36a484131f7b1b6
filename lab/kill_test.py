#!/usr/bin/env python
"""Kill processes that write models and checkpoints, and look at what is left: the old whole file or the new whole one.

    python lab/kill_test.py random --kills 500    SIGKILL at random moments of each kind of writing
    python lab/kill_test.py calls                 SIGKILL at every system call that changes files (needs strace)

Every kind replaces an output of another element type. After a kill the output must load, hold the old weights or the
new ones, and compute what these compute; after the next complete writing nothing else may lie in the folder.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
import onnx
import onnx.parser

import amp_transpiler as amp
from amp_transpiler.files import data_files, saving
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.paddle.static.tensor_file import write_tensors

DTYPES: tuple[Literal["float16"], Literal["bfloat16"]] = ("float16", "bfloat16")  # of the two versions of an output
CALLS = ("mkdir", "rename", "unlink", "unlinkat", "rmdir", "ftruncate", "copy_file_range", "flock", "fsync", "fchmod")
WRITES = ("write", "pwrite64")  # many: some of them are enough
MOST_WRITES = 12


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of writing.

    Attributes:
        output: the file's name.
        write: writes a version, 0 or 1, from the folder of sources to a file.
        read: returns what is in the file, or raises.
    """

    output: str
    write: Callable[[pathlib.Path, int, pathlib.Path], None]
    read: Callable[[pathlib.Path], str]


@dataclasses.dataclass
class Tally:
    """Outcomes of one case."""

    old: int = 0
    new: int = 0
    unkilled: int = 0
    swept: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.old + self.new + len(self.faults)


def transpile(name: str) -> Callable[[pathlib.Path, int, pathlib.Path], None]:
    def write(sources: pathlib.Path, version: int, output: pathlib.Path) -> None:
        amp.transpile(sources / name, output, level="O2", dtype=DTYPES[version], verify=False)

    return write


def copy(sources: pathlib.Path, version: int, output: pathlib.Path) -> None:
    copy_model(sources / f"copied{version}.onnx", output)


def checkpoint(sources: pathlib.Path, version: int, output: pathlib.Path) -> None:
    values = np.load(sources / "values.npy", mmap_mode="r")
    arrays = {
        f"w{number}": (row + version).astype((np.float32, np.float64)[version]) for number, row in enumerate(values)
    }
    write_tensors(output, arrays, arrays, {})


def read_model(path: pathlib.Path) -> str:
    """Return a digest of a model's weights and of its outputs."""
    digest = hashlib.sha256()
    for tensor in onnx.load(path).graph.initializer:
        digest.update(f"{tensor.name} {tensor.data_type}".encode() + onnx.numpy_helper.to_array(tensor).tobytes())
    session = amp.Session(path, amp.CPUPlace())
    digest.update(session.run({"x": np.ones((1, 8), np.float32)})[0].tobytes())
    return digest.hexdigest()


def read_checkpoint(path: pathlib.Path) -> str:
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, array in sorted(load_file(path).items()):
        digest.update(f"{name} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


CASES: Mapping[str, Case] = {
    "one file": Case("m.onnx", transpile("inline.onnx"), read_model),
    "external data": Case("m.onnx", transpile("external.onnx"), read_model),
    "copy": Case("m.onnx", copy, read_model),
    "checkpoint": Case("m.safetensors", checkpoint, read_checkpoint),
}


def make_sources(folder: pathlib.Path, width: int) -> None:
    """Write the sources of all cases: a chain of products, with weights inside and outside."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    sizes = [8, width, width, 8]
    arrays = [(generator.standard_normal(pair) / width).astype(np.float32) for pair in itertools.pairwise(sizes)]
    for name, location in (("inline", None), ("external", "weights.bin"), ("copied0", "c0.bin"), ("copied1", "c1.bin")):
        text = "g (float[N,8] x) => (float[N,8] y) { a = MatMul(x, w0) b = MatMul(a, w1) y = MatMul(b, w2) }"
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
        scaled = [array * (2 if name == "copied1" else 1) for array in arrays]
        for number, array in enumerate(scaled):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"w{number}"))
        onnx.save(model, folder / f"{name}.onnx", save_as_external_data=location is not None, location=location)
    np.save(folder / "values.npy", generator.standard_normal((4, width, width)).astype(np.float32))


class Bench:
    """One case in a folder of its own, with both versions written once to compare with."""

    def __init__(self, name: str, work: pathlib.Path, sources: pathlib.Path) -> None:
        self.name, self.case, self.sources, self.tally = name, CASES[name], sources, Tally()
        self.folder = work / name.replace(" ", "_")
        self.folder.mkdir()
        self.output = self.folder / self.case.output
        self.digests: list[str] = []
        self.clean: list[set[str]] = []
        for version in (1, 0):
            for path in self.folder.iterdir():
                path.unlink()
            self.write(version)
            self.digests.insert(0, self.case.read(self.output))
            self.clean.insert(0, self.listing())
        self.version = 0
        self.replaced = False  # since the last sweep
        assert name != "external data" or all(len(files) == 2 for files in self.clean), "the weights are too small"

    def clear(self) -> None:
        """Delete the other version's weights of a copy: they have a name of the source's, so they stay otherwise."""
        if self.name == "copy":
            for name in self.clean[1 - self.version] - self.clean[self.version]:
                (self.folder / name).unlink(missing_ok=True)

    def replacing(self) -> None:
        """Write the version that is not there."""
        self.clear()
        self.write(1 - self.version)

    def write(self, version: int) -> None:
        self.case.write(self.sources, version, self.output)

    def listing(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def judge(self, moment: str) -> None:
        """Look at the output after a kill while the other version was written."""
        try:
            state = self.digests.index(self.case.read(self.output))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the file is the finding
            self.tally.faults.append(f"{moment}: {error}")
            self.write(self.version)
            return
        if state == self.version:
            self.tally.old += 1
        else:
            self.tally.new += 1
            self.replaced = True
        self.version = state

    def sweep(self) -> None:
        """Write the present version once more, completely: everything that kills have left must go."""
        left = len(self.listing() - self.clean[0] - self.clean[1])
        self.write(self.version)
        if self.replaced:
            self.clear()
        if extra := self.listing() - self.clean[self.version]:
            self.tally.faults.append(f"left behind: {', '.join(sorted(extra))}")
        self.tally.swept += left
        self.replaced = False


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a child process, which then ends at once, and return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses none of the parent's threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def random_kills(bench: Bench, kills: int, randomness: random.Random, sweep_every: int = 10) -> None:
    """Kill the writer of one case this many times, at moments spread evenly over its work."""
    seconds = _duration(bench)
    while bench.tally.kills < kills:
        moment = randomness.uniform(0, 1.1 * seconds)
        child = forked(bench.replacing)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            bench.tally.unkilled += 1
            bench.version, bench.replaced = 1 - bench.version, True
            continue
        bench.judge(f"after {moment * 1000:.1f} ms")
        if bench.tally.kills % sweep_every == 0:
            bench.sweep()


def _duration(bench: Bench) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        os.waitpid(forked(bench.replacing), 0)
        times.append(time.perf_counter() - start)
        bench.version = 1 - bench.version
    return min(times)


def audited_kills(bench: Bench) -> int:
    """Kill the writer before every file that it opens, creates, moves or deletes in the output's folder.

    Returns:
        How many kills there were.
    """
    number = 0
    while True:
        number += 1
        child = forked(lambda: _write_until(bench, number))  # noqa: B023 - it is called at once
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            bench.version, bench.replaced = 1 - bench.version, True
            if status:
                bench.tally.faults.append(f"the writer failed: {status}")
            bench.sweep()
            return number - 1
        bench.judge(f"before change {number}")
        bench.sweep()
        if bench.version == 1:  # always the same work from the same state, so that no change is passed over
            bench.version, bench.replaced = 0, True
            bench.sweep()


def _write_until(bench: Bench, last: int) -> None:
    seen = 0
    folder = str(bench.folder)

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}:
            seen += any(isinstance(arg, (str, os.PathLike)) and os.fspath(arg).startswith(folder) for arg in args[:2])
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    # Several threads would open the files of weights at other moments each time.
    saving._WRITERS = data_files._READERS = 1  # noqa: SLF001
    bench.clear()
    sys.addaudithook(hook)
    bench.write(1 - bench.version)


def call_kills(bench: Bench, call: str, work: pathlib.Path) -> int:
    """Kill the writer of version 1 at the first, second, ... of one system call; return how many kills there were."""
    kept_copy = work / f"{bench.folder.name}.kept"
    if not kept_copy.exists():
        shutil.copytree(bench.folder, kept_copy, symlinks=True)
    arguments = [sys.executable, "-B", __file__, "write", bench.name, str(bench.sources), str(bench.folder)]
    for number in range(1, 1000):
        shutil.rmtree(bench.folder)
        shutil.copytree(kept_copy, bench.folder, symlinks=True)
        bench.version = 0
        when = f"inject={call}:signal=KILL:when={number}"
        strace = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", when]
        run = subprocess.run([*strace, *arguments], check=False)
        if run.returncode == 0 or (call in WRITES and number > MOST_WRITES):
            return number - 1
        bench.judge(f"{call} {number}")
        bench.sweep()
    raise AssertionError("the calls do not end")


def benches(names: list[str], width: int) -> Iterator[tuple[Bench, pathlib.Path]]:
    with tempfile.TemporaryDirectory(prefix="kills-") as text:
        work = pathlib.Path(text)
        make_sources(work / "sources", width)
        for name in names:
            yield Bench(name, work, work / "sources"), work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    randomly = commands.add_parser("random")
    randomly.add_argument("--kills", type=int, default=500, help="of all cases together")
    randomly.add_argument("--seed", type=int, default=0)
    systematic = commands.add_parser("calls")
    for command in (randomly, systematic):
        command.add_argument("--width", type=int, default=1024, help="of the weights; 1024: 4 MB each")
        command.add_argument("--case", choices=CASES, action="append")
    writer = commands.add_parser("write")
    writer.add_argument("case", choices=CASES)
    writer.add_argument("sources", type=pathlib.Path)
    writer.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "write":
        case = CASES[options.case]
        case.write(options.sources, 1, options.folder / case.output)
        return 0
    names = options.case or list(CASES)
    faults, rows = 0, []
    randomness = random.Random(getattr(options, "seed", 0))  # noqa: S311 - moments, no secrets
    for bench, work in benches(names, options.width):
        start = time.perf_counter()
        counts: collections.Counter[str] = collections.Counter()
        if options.command == "random":
            random_kills(bench, -(-options.kills // len(names)), randomness)
        else:
            for call in (*CALLS, *WRITES):
                counts[call] = call_kills(bench, call, work)
        tally = bench.tally
        print(
            f"{bench.name}: {tally.kills} kills, {tally.old} old, {tally.new} new, {len(tally.faults)} broken; "
            f"{tally.unkilled} writers done before; {tally.swept} leftovers swept; {time.perf_counter() - start:.0f} s "
            f"{dict(counts) or ''}",
            flush=True,
        )
        print(*(f"  {fault}" for fault in tally.faults[:20]), sep="\n", end="\n" if tally.faults else "")
        faults += len(tally.faults)
        rows.append(f"| {bench.name} | {tally.kills} | {tally.old} | {tally.new} | {len(tally.faults)} |")
    print(*rows, sep="\n")  # as docs/evidence/kills.md has them
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
