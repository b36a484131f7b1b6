"""Each lint reports a model that has its fault, and none that has not; the command prints what they report."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import onnx
import pytest

import lints
from programs.linted import Ran
from programs.sizes import NETWORKS, shallow
from tests.counted import Counted

PROGRAM = pathlib.Path(__file__).with_name("planted_faults.py")

# The lint -> a model of planted_faults.py -> what its finding says; None where there is none.
PLANTED = {
    "long reduction": {
        "maximum of 1025": "maximum of float32 [8, 1025, 1] to [8, 1, 1], 1025 elements",
        "maximum of 1024": None,
        "sum of 1025 in the middle": "sum of float32 [4, 1025, 3] to [4, 1, 3], 1025 elements",
        "sum of 1024 in the middle": None,
    },
    "uneven memsets": {"fused bias": "1 in the first run, 0 in the third", "bias": None},
    "host copy": {
        "node on the CPU": "DtoH, 128 bytes",
        "list of pointers": "HtoD, 24 bytes before gemm float32, 3 times",
        "one product": None,
    },
    "misaligned product": {
        "float16 1020": "float16 product m 1020, n 1024, k 1024, lda 1020, ldb 1024, ldc 1020, 2.1 GFLOP",
        "bfloat16 1020": "bfloat16 product m 1020",
        "float32 1022": "float32 product m 1022",
        "float32 1020": None,
        "float16 1016": None,
        "bfloat16 1016": None,
        "small float16 1020": None,
    },
    "long dot product": {
        "1999 dot products of 1025": "float32 product m 1, n 1, k 1025, batch 1999",
        "2000 dot products of 1025": None,
        "1999 dot products of 1024": None,
    },
    "huge kernel": {
        "computed kernel of 12": "Conv y, kernel [12, 12], [4, 1, 12, 12] to [4, 4, 1, 1]",
        "computed kernel of 12, many results": None,
        "computed kernel of 11": None,
        "cast kernel of 12": None,
    },
}
CASES = [(lint, model, says) for lint, models in PLANTED.items() for model, says in models.items()]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The findings of all models of `planted_faults.py`."""
    return Counted(tmp_path_factory.mktemp("planted")).program(PROGRAM)


def test_every_lint_has_a_model_with_its_fault_and_one_without():
    assert set(PLANTED) == set(lints.LINTS)
    for models in PLANTED.values():
        assert None in models.values()
        assert any(models.values())


@pytest.mark.slow
@pytest.mark.parametrize(("lint", "model", "says"), CASES)
def test_a_lint_reports_its_fault_alone(planted, lint, model, says):
    reported = {name: places for name, places in planted[model].items() if places}
    if says is None:
        assert reported == {}
    else:
        assert list(reported) == [lint]
        assert says in reported[lint][0]


@pytest.mark.slow
def test_all_planted_models_are_expected(planted):
    assert set(planted) == {model for _, model, _ in CASES}


def copies(*rows: tuple[str, int, int]) -> Ran:
    """Return a run with copies: direction, bytes, count; its feeds have 8, 8 and 16 bytes."""
    listed = [{"way": way, "bytes": size, "before": "", "count": count} for way, size, count in rows]
    return Ran(first={}, steady={"copies": listed}, fed=(8, 8, 16))


@pytest.mark.parametrize(
    ("rows", "reports"),
    [
        ([("HtoD", 8, 2), ("HtoD", 16, 1)], []),
        ([("HtoD", 8, 3)], ["HtoD, 8 bytes after the last launch"]),
        ([("HtoD", 8, 1), ("HtoD", 16, 3)], ["HtoD, 16 bytes after the last launch, 2 times"]),
        ([("DtoH", 8, 1)], ["DtoH, 8 bytes after the last launch"]),
    ],
)
def test_the_copies_of_feeds_do_not_count(rows, reports):
    assert list(lints.host_copies(copies(*rows))) == reports


def test_a_shallow_network_has_the_sizes_of_the_whole():
    network = shallow(NETWORKS["resnet50"])
    assert network.layers == (2, 2, 2, 2)
    assert (network.hidden, network.batch) == (NETWORKS["resnet50"].hidden, NETWORKS["resnet50"].batch)
    assert shallow(NETWORKS["raf"]) == NETWORKS["raf"]


# ---- the command ----
def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, lints.__file__, *arguments], check=False, capture_output=True, text=True)


def test_the_list_has_every_lint_with_its_reason():
    done = command("--list")
    assert done.returncode == 0
    for name, lint in lints.LINTS.items():
        assert f"{name}\n    forbids: {lint.forbids}\n    why: {lint.why}" in done.stdout


@pytest.mark.slow
def test_a_missing_file_is_named():
    done = command("nothing.onnx")
    assert done.returncode == 2
    assert "nothing.onnx is no file, and no network: these are rocm, raf" in done.stderr


@pytest.mark.slow
def test_a_model_that_cannot_run_is_no_finding(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    done = command(str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lints.py: ")


@pytest.mark.slow
def test_the_command_prints_the_findings_of_a_model(tmp_path, planted):
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, L] x) => (float[N, 1] y) { a = Constant<value_ints = [1]>() y = ReduceMax(x, a) }"""),
        path,
    )
    long, short = (command(str(path), "--dim", f"L={length}", "--dim", "N=8") for length in (1025, 1024))
    [finding] = planted["maximum of 1025"]["long reduction"]
    assert (long.returncode, long.stdout) == (1, f"long reduction: {finding}\n")
    assert (short.returncode, short.stdout) == (0, "no finding\n")
