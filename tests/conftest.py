"""The folder of real models that the corpus tests take, what they tell at the end of a run, and the record of a run.

Also the place of a run (`--place`), and the tests that need the host's real device (the marker `device`).
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.runtime import cuda
from amp_transpiler.runtime.places import PLACE_VARIABLE
from launches_libraries import MARK
from tests import older_onnx, oldest_cases, sleeping_threads, unflushed
from tests.counted import Counted, CountedSteps
from tests.exported_steps import ExportedSteps
from tests.placing import Place, Placing
from tests.record import Recorder

os.environ["AMP_TRANSPILER_CACHE"] = "off"  # tests leave nothing in the user's folder; those of the cache choose one
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # many a test imports onnxruntime before the package
older_onnx.install()  # before any file of tests makes a model
sleeping_threads.install()  # before any file of tests opens a session
unflushed.install()

TESTS = pathlib.Path(__file__).resolve().parent
HOST_DEFAULT = "default"  # of --place: what the host decides
GARBAGE_AFTER = 2_000_000  # objects; some hundreds of MB
SLOW = "slow"  # the marker
SUMMARY = "summary"  # a user property of a test under this name is printed at the end of the run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--corpus",
        metavar="FOLDER",
        type=lambda text: pathlib.Path(text).resolve(),  # tests change the working folder
        help="folder of real models, made by lab/fetch_corpus.py and lab/export_corpus.py",
    )
    parser.addoption(
        "--record",
        metavar="FILE",
        type=pathlib.Path,
        help="write the outcome and time of every test, and the reason of every skip, for scripts/skipped.py",
    )
    parser.addoption(
        "--every",
        metavar="N",
        type=int,
        default=1,
        help="run the first and every Nth case of each test function (default 1: all)",
    )
    parser.addoption(
        "--all-cases",
        action="store_true",
        help="run all cases of the tests with the marker `sampled`, too; otherwise one of several runs",
    )
    parser.addoption(
        "--oldest",
        action="store_true",
        help="run only what tests/oldest.toml chooses for the oldest versions, and of it the cases that it chooses",
    )
    parser.addoption(
        "--place",
        metavar="NAME",
        default="cpu",
        help=f"the default place of all tests, by {PLACE_VARIABLE}: cpu (default), whose numbers and verdicts they "
        f"expect; another, such as CUDA:0; or {HOST_DEFAULT}, the host's own",
    )


@pytest.fixture(scope="session")
def corpus(request: pytest.FixtureRequest) -> pathlib.Path:
    """The corpus folder; tests that ask for it are skipped without one."""
    folder = request.config.getoption("--corpus")
    if folder is None:
        pytest.skip("no corpus: make one with lab/fetch_corpus.py FOLDER, then give --corpus FOLDER")
    if not folder.is_dir():
        pytest.skip(f"no corpus: {folder} is no folder")
    return folder


@pytest.fixture
def counted(tmp_path: pathlib.Path) -> Counted:
    """Launches, copies and bytes of the real CUDA provider without a GPU; skipped where they cannot be counted."""
    return Counted(tmp_path)


@pytest.fixture(scope="session")
def counted_step(tmp_path_factory: pytest.TempPathFactory) -> CountedSteps:
    """Return what counts training steps, each once in a run of the tests."""
    return CountedSteps(_of_the_run(tmp_path_factory, "counted-steps"))


@pytest.fixture(scope="session")
def exported_step(tmp_path_factory: pytest.TempPathFactory) -> ExportedSteps:
    """Return what exports training steps from torch, each once in a run of the tests."""
    return ExportedSteps(_of_the_run(tmp_path_factory, "exported-steps"))


def _of_the_run(tmp_path_factory: pytest.TempPathFactory, name: str) -> pathlib.Path:
    """Return a folder that all workers share."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # a worker's own folder lies in that of the run
    shared = folder / name
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """Return what places models as the CUDA provider does."""
    with tempfile.TemporaryFile() as errors:
        placing = Placing(errors)
        yield placing.place
        placing.end()


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave out files none of whose tests would run: without a row in `oldest.toml`, or without a slow test."""
    if not collection_path.is_relative_to(TESTS):
        return None
    if config.getoption("markexpr") == SLOW and collection_path.suffix == ".py" and not _may_be_slow(collection_path):
        return True
    if not config.getoption("--oldest"):
        return None
    path = collection_path.relative_to(TESTS.parent).as_posix()
    return None if path == "tests" or oldest_cases.is_wanted(path, folder=collection_path.is_dir()) else True


def _may_be_slow(file: pathlib.Path) -> bool:
    """Whether a file may have slow tests: a file that has some names the marker. Importing all takes ten seconds."""
    return f"mark.{SLOW}" in file.read_text(encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first and every Nth case of each test function; skip what needs newer versions, and what is sampled."""
    needs = oldest_cases.needed(oldest_cases.installed())
    samples, seen = _Samples(), collections.Counter[str]()
    chosen, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        row = oldest_cases.row_of(function.partition("::")[0]) if config.getoption("--oldest") else None
        every = config.getoption("--every") if row is None else row["every"]
        (left_out if seen[function] % every else chosen).append(item)
        seen[function] += 1
        reasons = [needs[name] for name in needs if item.nodeid.startswith(name)]
        if not config.getoption("--all-cases"):
            reasons += samples.why_not(item, function)
        for reason in reasons:
            item.add_marker(pytest.mark.skip(reason=reason))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def _let_loggers_propagate() -> None:
    """Let what torch logs reach the root logger, too, from which pytest takes it.

    To each logger that does not propagate, pytest adds its handlers three times a test, twice, and removes them again.
    torch has fifty of those, which took a millisecond of every test.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True


class _Samples:
    """Which cases of sampled tests run.

    A case has an index in each of the tables that its test is the product of. Those whose sum is divisible run: each
    row of each table is met, with other rows of the other tables each time.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[int, int]] = {}  # function and parameter -> identity of a row -> index

    def why_not(self, item: pytest.Item, function: str) -> list[str]:
        """Return why a case does not run; empty if it does."""
        marker = item.get_closest_marker("sampled")
        if marker is None:
            return []
        (one_of,) = marker.args
        at = 0
        for name, value in item.callspec.params.items():  # type: ignore[attr-defined]  # it is parametrized
            rows = self._rows.setdefault((function, name), {})
            at += rows.setdefault(id(value), len(rows))
        return [f"one of {one_of} cases of this test runs; --all-cases runs them all"] if at % one_of else []


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect without garbage collection, which would walk through 20,000 tests again and again and find nothing.

    What is imported and collected stays until the end. So it is frozen: the collections during the tests leave it out.
    They are seldom: a graph of nodes and values lives until its test ends. By default Python searches what is new for
    garbage after each 700 objects, which takes a tenth of all the time of the tests; two thirds of that are saved.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        _let_loggers_propagate()
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()


@contextlib.contextmanager
def _skipped_without_training() -> Iterator[None]:
    """Skip a test that ends because training needs newer versions than there are."""
    try:
        yield
    except EnvironmentProblem as problem:
        if str(problem) == oldest_cases.why_no_training():
            pytest.skip(str(problem))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("device") is not None and (reason := _no_real_device()) is not None:
        pytest.skip(reason)
    with _skipped_without_training():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _skipped_without_training():
        return (yield)


def _no_real_device() -> str | None:
    """Why nothing can be computed on a device of this host; None if it can."""
    if MARK in os.environ:
        return "the device is a pretended one (lab/launches.py): nothing computes there"
    return cuda.cuda_problem(0)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the place, and begin the record: a run that dies leaves one without an end."""
    place = config.getoption("--place")
    if place != HOST_DEFAULT:
        os.environ[PLACE_VARIABLE] = place  # the processes that tests start have it, too
    path = config.getoption("--record")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path, config.getoption("markexpr")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        f"{report.nodeid}: {value}"
        for report in _reports(terminalreporter)
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == SUMMARY
    ]
    if told:
        terminalreporter.section("corpus", sep="-")
        terminalreporter.write_line("\n".join(sorted(told)))


def _reports(terminalreporter: pytest.TerminalReporter) -> list[pytest.TestReport | pytest.CollectReport]:
    kinds = (pytest.TestReport, pytest.CollectReport)
    return [report for group in terminalreporter.stats.values() for report in group if isinstance(report, kinds)]
