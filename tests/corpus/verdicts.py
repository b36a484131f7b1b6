"""A page that counts the verdicts over a corpus, and says which of them the oracle contradicts."""

from __future__ import annotations

import collections
import datetime as dt
import pathlib
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

PROPERTY = "verdict"  # a user property of a test under this name is a row for the page
WORDS = ("verified", "estimated", "plausible", "compared", "structure only", "not checked", "failed")
_NOT_JUDGED = "; not judged"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def row(name: str, level: str, dtype: str, word: str, verdict: str, contradicted: list[str]) -> dict[str, Any]:
    """Return what the page needs of one conversion."""
    return {
        "model": name,
        "way": f"{level}, {dtype}",
        "word": str(word),
        "verdict": str(verdict),  # workers send plain texts only
        "contradicted": contradicted,
    }


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the page, in Markdown."""
    rows = sorted(rows, key=lambda row: (row["way"], row["model"]))
    ways = sorted({row["way"] for row in rows}, key=lambda way: (not way.startswith("auto"), way))
    counts = collections.Counter((row["way"], row["word"]) for row in rows)
    contradicted = [row for row in rows if row["contradicted"]]
    lines = [
        "# Verdicts over the corpus",
        "",
        _origin(len({row["model"] for row in rows})),
        "",
        f"| way | {' | '.join(WORDS)} | contradicted by the oracle |",
        f"| --- |{' --- |' * (len(WORDS) + 1)}",
    ]
    for way in ways:
        numbers = [str(counts[way, word]) for word in WORDS]
        against = sum(row["way"] == way for row in contradicted)
        lines.append(f"| {way} | {' | '.join(numbers)} | {against} |")
    lines += ["", *_listed("Contradicted", contradicted, lambda row: "; ".join(row["contradicted"]))]
    rare = [row for row in rows if row["word"] in ("structure only", "not checked", "failed")]
    lines += _listed(
        "Neither verified, estimated, plausible nor compared", rare, lambda row: row["verdict"].split(";")[0]
    )
    unjudged = [row for row in rows if _NOT_JUDGED[2:] in row["verdict"]]
    lines += _listed("Not judged by the oracle", unjudged, lambda row: row["verdict"].split("not judged: ")[-1])
    return "\n".join(lines).rstrip() + "\n"


def _origin(models: int) -> str:
    versions = f"onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}, numpy {np.__version__}"
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip() or "unknown"
    return f"""\
`python lab/corpus_verdicts.py CORPUS` (`lab/fetch_corpus.py CORPUS` fills the folder), {today}, commit
{commit}, {versions}. {models} models, each converted on the inputs that belong to it and
run once more by the oracle of the tests (`tests/oracle`), which shares no code with the package. It contradicts a
verdict where its error is beyond the limit of a result that is *verified*, *estimated*, *plausible* or a copy (2 % in
float16, 5 % in bfloat16), or differs by more than a factor of two and four roundings from the plain emulation in the
report."""


def _listed(title: str, rows: list[Mapping[str, Any]], say: Any) -> list[str]:
    if not rows:
        return [f"{title}: none.", ""]
    return [f"{title}:", "", *(f"- {row['model']}, {row['way']}: {say(row)}" for row in rows), ""]
