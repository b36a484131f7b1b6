#!/usr/bin/env python3
"""Installs the package into fresh environments, beside what users have there, and prints a table of what came of it.

    python scripts/fresh_environments.py                     # all: some minutes each, and a few GB where torch comes
    python scripts/fresh_environments.py --quick             # those without torch
    python scripts/fresh_environments.py magika modelopt     # these
    python scripts/fresh_environments.py modelopt --write docs/installation.md
    python scripts/fresh_environments.py --check docs/installation.md     # tries nothing: a row for each, as expected

In each environment: pip installs what is there first, then this package; `doctor` answers; three models of models/ are
converted and checked; `pip check` finds nothing that does not fit. Exit status 1 if anything else happens. It needs a
package index, and room in --folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = tuple(sorted((ROOT / "models").glob("*.onnx"))[:3])
BEGIN, END = "<!-- begin of the table of scripts/fresh_environments.py -->", "<!-- end -->"
_LIMIT = 1800  # seconds for a command; torch takes its time


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """What is there before.

    Attributes:
        name: of the row.
        before: what pip installs first.
        extra: the extra of this package that is asked for; empty for none.
        quick: whether it needs neither torch nor other hundreds of megabytes.
        refusal: what the command says; empty where it converts.
    """

    name: str
    before: tuple[str, ...] = ()
    extra: str = ""
    quick: bool = False
    refusal: str = ""

    @property
    def begin(self) -> str:
        """How its row begins."""
        there = ", ".join(f"`{name}`" for name in self.before) or "nothing"
        return f"| {there} | {f'`[{self.extra}]`' if self.extra else 'none'} |"

    @property
    def expected(self) -> str:
        """How its row ends."""
        return f"refused: {self.refusal}" if self.refusal else f"{len(MODELS)} converted, `pip check` clean"


ENVIRONMENTS = (
    Environment("empty, no extra", quick=True, refusal="ONNX Runtime cannot be used: no wheel of it is installed"),
    Environment("empty, cpu", extra="cpu", quick=True),
    Environment("magika", ("magika",), quick=True),
    Environment("rapidocr", ("rapidocr", "onnxruntime")),
    Environment("insightface", ("insightface", "onnxruntime")),
    Environment("optimum", ("optimum[onnxruntime]",)),
    Environment("modelopt", ("nvidia-modelopt[onnx]",)),
    Environment("openvino", ("onnxruntime-openvino",)),
    Environment("oldest", ("onnx==1.17.0", "onnxruntime==1.22.0", "numpy==1.26.4", "ml_dtypes==0.5.0"), quick=True),
    Environment("two wheels", ("onnxruntime", "onnxruntime-gpu")),
    Environment("too old", ("onnxruntime==1.20.1",), quick=True, refusal="1.20.1 is older than 1.22"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an environment.

    Attributes:
        environment: what was there before.
        runtime: what `doctor` says of ONNX Runtime.
        versions: of onnx and numpy.
        converted: how many of the models were written.
        faults: what should not have happened.
        seconds: all together.
    """

    environment: Environment
    runtime: str = ""
    versions: str = ""
    converted: int = 0
    faults: tuple[str, ...] = ()
    seconds: float = 0.0

    def row(self) -> str:
        """Return the row of the table."""
        result = "; ".join(self.faults) or self.environment.expected
        return f"{self.environment.begin} {self.runtime} | {self.versions} | {result} |"


HEAD = (
    "| there before | extra | ONNX Runtime that is used | onnx, numpy | three models |\n| --- | --- | --- | --- | --- |"
)


def main() -> int:
    """Try the environments that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join(environment.name for environment in ENVIRONMENTS)
    )
    parser.add_argument("--quick", action="store_true", help="only those that need no torch")
    parser.add_argument(
        "--write", metavar="PAGE", type=pathlib.Path, help="write the rows into the table between its marks on a page"
    )
    parser.add_argument(
        "--check", metavar="PAGE", type=pathlib.Path, help="only see that the table has a row for each, as expected"
    )
    parser.add_argument("--folder", type=pathlib.Path, help="where environments are made (default: temporary)")
    options = parser.parse_args()
    if options.check is not None:
        faults = missing(options.check.read_text(encoding="utf-8"))
        print("\n".join(faults) or "the table has a row for each environment, as expected")
        return 1 if faults else 0
    known = {environment.name: environment for environment in ENVIRONMENTS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"there is no environment {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or [
        environment for environment in ENVIRONMENTS if environment.quick or not options.quick
    ]
    outcomes = []
    for environment in chosen:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            outcomes.append(attempt(environment, pathlib.Path(folder)))
        last = outcomes[-1]
        print(f"{environment.name}: {'; '.join(last.faults) or 'as expected'}, {last.seconds:.0f} s", flush=True)
    rows = [outcome.row() for outcome in outcomes]
    print("\n".join([HEAD, *rows]))
    if options.write is not None:
        options.write.write_text(with_rows(options.write.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def with_rows(page: str, rows: Sequence[str]) -> str:
    """Return a page with rows in the table between its marks, in the place of older ones of the same environments.

    Rows of environments that are no longer tried go.

    Raises:
        ValueError: the page has no marks.
    """
    before, table, after = _parts(page)
    known = [*rows, *table.splitlines()]
    latest = [
        row for environment in ENVIRONMENTS for row in [row for row in known if row.startswith(environment.begin)][:1]
    ]
    table = "\n".join([HEAD, *latest])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def missing(page: str) -> list[str]:
    """Return what is wrong with the table of a page: environments without a row, or with another outcome."""
    rows = _parts(page)[1].splitlines()
    faults = []
    for environment in ENVIRONMENTS:
        row = next((row for row in rows if row.startswith(environment.begin)), None)
        if row is None:
            faults.append(
                f"{environment.name}: no row; run scripts/fresh_environments.py {environment.name!r} "
                "--write docs/installation.md"
            )
        elif not row.endswith(f"| {environment.expected} |"):
            faults.append(f"{environment.name}: expected {environment.expected!r}, and the row is {row!r}")
    return faults


def _parts(page: str) -> tuple[str, str, str]:
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN} with {END} behind it")
    return before, table, after


def attempt(environment: Environment, folder: pathlib.Path) -> Outcome:
    """Install into a fresh environment, and use what is there."""
    began, faults = time.monotonic(), []
    python = folder / "env" / "bin" / "python"
    steps = [[sys.executable, "-m", "venv", str(folder / "env")]]
    if environment.before:
        steps.append([*_pip(python), *environment.before])
    package = f"{ROOT}[{environment.extra}]" if environment.extra else str(ROOT)
    steps.append([*_pip(python), package])
    for step in steps:
        status, text = _run(step, folder)
        if status != 0:
            return Outcome(environment, faults=(f"{' '.join(step[-3:])}: {_last_line(text)}",))
    status, doctor = _run([str(python), "-m", "amp_transpiler", "doctor"], folder)
    if (status == 0) != (not environment.refusal):
        faults.append(f"doctor: exit status {status}")
    converted, told = _convert(python, folder)
    if environment.refusal and (converted or environment.refusal not in told):
        faults.append(f"not refused: {_last_line(told)}")
    if not environment.refusal and converted < len(MODELS):
        faults.append(f"{converted} of {len(MODELS)} converted: {_last_line(told)}")
    status, text = _run([str(python), "-m", "pip", "check"], folder)
    if status != 0:
        faults.append(f"pip check: {_last_line(text)}")
    versions = ", ".join(_version(python, folder, name) for name in ("onnx", "numpy"))
    seconds = time.monotonic() - began
    return Outcome(environment, _runtime(doctor), versions, converted, tuple(faults), seconds)


def _pip(python: pathlib.Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]


def _convert(python: pathlib.Path, folder: pathlib.Path) -> tuple[int, str]:
    """Return how many models were converted, and what was said last."""
    count, told = 0, ""
    for model in MODELS:
        shutil.copy(model, folder)
        status, text = _run([str(python), "-m", "amp_transpiler", model.name], folder)
        # What gains nothing is kept in float32, and named so.
        written = any((folder / f"{model.stem}.{name}.onnx").is_file() for name in ("fp16", "fp32"))
        count += status == 0 and written
        told = text if status else told
    return count, told


def _run(command: Sequence[str], folder: pathlib.Path) -> tuple[int, str]:
    """Return the exit status of a command and what it said. It runs outside of the source folder."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_LIMIT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    return done.returncode, done.stdout


def _version(python: pathlib.Path, folder: pathlib.Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _run([str(python), "-c", code], folder)[1].strip()


def _runtime(doctor: str) -> str:
    """Return the wheels of ONNX Runtime from what `doctor` says."""
    # Of the table: a warning of several wheels stands above it.
    match = re.search(r"^\w+ +ONNX Runtime +(?:\S+ \(([^)]*)\)|(.*))", doctor, re.MULTILINE)
    return (" ".join((match[1] or "").split()) or "none that works") if match else "?"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no word"


if __name__ == "__main__":
    sys.exit(main())
