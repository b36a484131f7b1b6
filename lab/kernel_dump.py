#!/usr/bin/env python3
"""Dump what releases of ONNX Runtime register and read: kernels, schemas, the newest opset and IR version.

    python lab/kernel_dump.py FOLDER 1.20.2 1.31.1 ...       # downloads each wheel, writes FOLDER/1.20.2.json, ...
    python lab/kernel_dump.py FOLDER --unpacked /some/1.20.2  # of a wheel that is unpacked there already

The answers come from the binary: `get_all_opkernel_def()` and `get_all_operator_schema()` of the wheel onnxruntime-gpu,
and sessions over models of one Identity at each opset and IR version. No GPU is needed (see `standin.py`). A wheel is
200 to 300 MB, unpacked up to 1 GB, and is deleted before the next one. Run it under the Python that the wheels are for
(every release from 1.17 has one for 3.11). Releases before 1.19 want numpy 1: it is downloaded for them. A release that
cannot be dumped is named, with the reason, and the exit status is 1.

Afterwards `python lab/kernel_tables.py FOLDER` makes the package's tables from the dumps.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import onnx

from standin import CannotTell, stand_in_environment

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
FIRST_WITH_NUMPY_2 = (1, 19)
# A model of one Identity without anything newer, at each of these opsets and IR versions.
OPSETS = range(13, 41)
IR_VERSIONS = range(7, 21)

CHILD = """
import json, os, pathlib, sys
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

def newest(kind):
    found = 0
    for path in sorted(pathlib.Path(sys.argv[1]).glob(f"{kind}-*.onnx")):
        try:
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception:
            continue  # too new
        found = max(found, int(path.stem.split("-")[1]))
    return found

onnxruntime.set_default_logger_severity(4)
kernels = {}
for kernel in state.get_all_opkernel_def():
    row = [kernel.domain, kernel.op_name, list(kernel.version_range), kernel.type_constraints]
    kernels.setdefault(kernel.provider, []).append(row)
schemas = [[s.domain, s.name, s.since_version, bool(s.deprecated)] for s in state.get_all_operator_schema()]
print(json.dumps({
    "release": onnxruntime.__version__, "opset": newest("opset"), "ir": newest("ir"),
    "schemas": schemas, "kernels": kernels,
}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where to write RELEASE.json")
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument("--unpacked", action="append", default=[], type=pathlib.Path, metavar="WHEEL")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for unpacked in options.unpacked:
        failed += dump(unpacked, options.folder)
    for release in options.releases:
        with tempfile.TemporaryDirectory(prefix="ort-dump-") as scratch:
            failed += dump(unpack(release, pathlib.Path(scratch)), options.folder)
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def unpack(release: str, scratch: pathlib.Path) -> pathlib.Path:
    """Download the wheel of a release, and the numpy that it needs; return the folder they are unpacked in."""
    unpacked = scratch / release
    unpacked.mkdir()
    wanted = [f"onnxruntime-gpu=={release}"]
    if tuple(map(int, release.split(".")[:2])) < FIRST_WITH_NUMPY_2:
        wanted.append("numpy<2")
    for requirement in wanted:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(scratch)]
        pip += [f"--python-version={sys.version_info.major}.{sys.version_info.minor}", "--implementation=cp"]
        subprocess.run([*pip, *(f"--platform={name}" for name in PLATFORMS), requirement], check=True)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        wheel.unlink()
    return unpacked


def dump(unpacked: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Write the dump of an unpacked wheel; return a line that says why where that cannot be done."""
    try:
        environment = stand_in_environment(unpacked / "onnxruntime" / "capi")
    except CannotTell as error:
        return [f"{unpacked.name}: {error}"]
    with tempfile.TemporaryDirectory(prefix="ort-dump-") as models:
        write_probes(pathlib.Path(models))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, models],
            check=False,
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": str(unpacked)},
        )
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return [f"{unpacked.name}: cannot be dumped (exit status {done.returncode}): {last}"]
    record = json.loads(done.stdout.splitlines()[-1])
    (folder / f"{record['release']}.json").write_text(json.dumps(record))
    counts = ", ".join(f"{len(rows)} {provider}" for provider, rows in sorted(record["kernels"].items()))
    print(
        f"{record['release']}: opset {record['opset']}, IR {record['ir']}, {len(record['schemas'])} schemas, {counts}"
    )
    return []


def write_probes(folder: pathlib.Path) -> None:
    """Write the models that tell the newest opset and IR version."""
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", value[:1], value[1:])
    probes = [("opset", version, version, 8) for version in OPSETS] + [("ir", ir, 13, ir) for ir in IR_VERSIONS]
    for kind, number, opset, ir in probes:
        imports = [onnx.helper.make_opsetid("", opset)]
        model = onnx.ModelProto(ir_version=ir, graph=graph, opset_import=imports)
        (folder / f"{kind}-{number}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    sys.exit(main())
