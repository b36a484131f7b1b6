"""A run's results as data: a file of JSON lines, the run first, then a record a line with its stage.

`docs/benchmarks/gpu/` holds such files; `gpu.page` makes the page from them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
import pathlib
import platform
import re
import subprocess
from collections.abc import Sequence

from amp_transpiler.cost import DEVICES
from gpu.records import Record

__all__ = ["Results", "environment", "free_name", "read", "row_of"]

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What parts need besides the standard library, and what becomes of a run without it is said by the parts themselves.
MODULES = "numpy scipy onnx onnx_ir ml_dtypes safetensors regex jinja2 rich tomli_w torch transformers".split()


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        run: what the figures depend on: device, driver, date, versions, commit, command, seconds; notes on it.
        records: a record a line, each with its `stage`.
    """

    run: Record
    records: Sequence[Record]

    def write(self, path: pathlib.Path) -> None:
        """Write the file, in one piece: a run that is ended has either an old file or a whole one."""
        lines = [json.dumps(line) for line in ({"run": self.run}, *self.records)]
        staged = path.with_suffix(".part")
        staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
        staged.replace(path)

    def of(self, *stages: str) -> list[Record]:
        """Return the records of some stages."""
        return [record for record in self.records if record["stage"] in stages]


def read(path: pathlib.Path) -> Results:
    """Return the results in a file."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    return Results(json.loads(head)["run"], [json.loads(line) for line in lines])


def free_name(folder: pathlib.Path, run: Record) -> pathlib.Path:
    """Return a path for a run's file that is not there yet: DATE-DEVICE.jsonl."""
    device = row_of(run["device"]) or re.sub(r"\W+", "-", run["device"]).strip("-") or "device"
    stem = f"{run['date']}-{device.lower()}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(path for name in names if not (path := folder / f"{name}.jsonl").exists())


def row_of(device: str) -> str | None:
    """Return the cost model's row of a device by its name, or None."""
    wanted = device.replace(" ", "").upper()
    return next((name for name in DEVICES if name in wanted), None)


def environment(place: str, command: Sequence[str]) -> Record:
    """Return the run's line, but for its seconds."""
    import numpy as np
    import onnxruntime

    import amp_transpiler as amp
    from amp_transpiler.runtime.places import place_named
    from amp_transpiler.runtime.probe.measure import device_row

    device = device_row(place_named(place))
    return {
        "device": device["device"],
        "driver": device["driver"],
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "versions": {
            "onnxruntime": onnxruntime.__version__,
            "cuda": device["cuda"],
            "cudnn": device["cudnn"],
            "torch": _torch_version(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "amp_transpiler": amp.__version__,
        },
        "missing": [name for name in MODULES if importlib.util.find_spec(name) is None],
        "commit": _commit(),
        "command": " ".join(command),
    }


def _torch_version() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return str(torch.__version__)


def _commit() -> str | None:
    """Return the commit of the checkout, with a plus sign where files differ from it; None outside of one."""
    try:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
