"""`amp.compare_releases`: what the tables say of two releases, and what interpreters that hold them compute."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.interpreter import Interpreter, RunReply
from amp_transpiler.diagnosis.releases.both import Both
from amp_transpiler.diagnosis.releases.departure import departures
from amp_transpiler.diagnosis.releases.fusions import fusion_changes, operator_changes, surviving_values
from amp_transpiler.diagnosis.releases.known_faults import FAULTS
from amp_transpiler.errors import InputError, OptionError
from tests.runtime.onnxruntime_faults import FAULTS as TRIED
from tests.support import array, parse

INSTALLED = onnxruntime.__version__
RELEASE = ".".join(INSTALLED.split(".")[:2])
F16 = np.float16
SAMPLES = {"x": array(2, 4, seed=5)}
PLAIN = parse("(float[2,4] x) => (float[2,4] y) { [up] h = MatMul (x, w) [act] y = Relu (h) }", w=array(4, 4))
# ONNX Runtime's CUDA provider has a kernel of this Pad and of this ArgMax in later releases.
PADDED = parse(
    '(float[2,4] x) => (float[4,4] y) { [up] h = MatMul (x, w) [pad] p = Pad <mode = "edge"> (h, pads) '
    "[act] y = Relu (p) }",
    opset=19,
    w=array(4, 4),
    pads=np.array([1, 0, 1, 0], np.int64),
)
PICKED = parse(
    "(float[2,4] x) => (int64[2,1] y) { [up] h = MatMul (x, w) [pick] y = ArgMax <axis = 1> (h) }",
    opset=13,
    w=array(4, 4),
)
CRASHING = parse(
    "(float16[5,2,4] x) => (float16[2,5,3] y) { [turn] t = Transpose <perm = [1, 0, 2]> (x) "
    "[product] y = MatMul (t, w) }",
    w=array(4, 3).astype(F16),
)
QUANTIZED = parse(
    "(float16[2,4] x) => (float16[2,4] y) { [quantize] q = QuantizeLinear (x, s, z) "
    "[back] y = DequantizeLinear (q, s, z) }",
    opset=19,
    s=F16(0.1),
    z=np.int8(0),
)
NEWER = parse("(float[2,4] x) => (float[2,4] y) { [act] y = Relu (x) }", opset=22)
compare = amp.compare_releases
ENGINE = "amp_transpiler.diagnosis.releases.compare"


# ---- the tables ----


def test_a_kernel_that_a_release_lacks_moves_a_node_and_copies_what_it_reads():
    difference = compare(PADDED, ort=("1.17", "1.31"))
    (row,) = [row for row in difference.placement if row.model == "float32"]
    assert (row.node, row.op, row.old, row.new) == ("pad", "Pad", "cpu", "cuda")
    (count,) = [count for count in difference.copies if count.model == "float32"]
    assert (count.old, count.new, count.vanishing, count.appearing) == (2, 0, ("h", "p"), ())
    assert difference.something_changes
    back = compare(PADDED, ort=("1.31", "1.17"))
    assert {(row.old, row.new) for row in back.placement} == {("cuda", "cpu")}
    assert back.copies[0].appearing == ("h", "p")


def test_a_decision_changes_with_its_reason():
    difference = compare(PICKED, ort=("1.20", "1.31"))
    (row,) = difference.decisions
    assert (row.node, row.op, row.old, row.new) == ("pick", "ArgMax", "float32", "float16")
    assert "no float16 kernel for ArgMax" in row.old_reason


def test_releases_of_one_table_row_change_nothing():
    difference = compare(PLAIN, ort=("1.30", "1.31"))
    assert not difference.something_changes
    assert (difference.placement, difference.copies, difference.faults, difference.decisions) == ((), (), (), ())
    assert difference.not_run == "no interpreters were named that hold the releases"


# Model, releases -> the release that has the fault, the table, and words of it.
KNOWN = {
    "a crash": (CRASHING, ("1.22", "1.31"), "1.31", "fault", "transposed batch", "product"),
    "a refused kernel": (QUANTIZED, ("1.20", "1.31"), "1.20", "refused kernel", "reads them as float32", "quantize"),
    "a limit": (NEWER, ("1.20", "1.31"), "1.20", "limit", "reads opsets up to 21, and the model has 22", ""),
}


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("reversed_", [False, True])
def test_a_fault_that_only_one_release_has(case, reversed_):
    model, releases, release, table, words, node = KNOWN[case]
    difference = compare(model, model, ort=releases[::-1] if reversed_ else releases)
    rows = [row for row in difference.faults if row.model == "low" and row.node == node]
    assert [(row.release, row.table) for row in rows] == [(release, table)]
    assert words in rows[0].fault


def test_the_faults_are_those_of_the_page():
    tried = {fault.name: fault for fault in TRIED}
    for row in FAULTS:
        fault = tried[row.name]
        assert fault.releases == f"{row.first} to {row.last or '1.31'}"
        assert fault.provider == row.provider


def test_a_low_model_is_looked_at_in_both_releases():
    low = amp.transpile(PADDED, level="O2", verify=False, ort="1.31").program.to_onnx()
    difference = compare(PADDED, low, ort=("1.17", "1.31"))
    assert {row.model for row in difference.placement} == {"float32", "low"}
    assert (difference.low, difference.dtype) == ("the low model", "float16")


def test_a_newer_release_than_the_tables_is_noted():
    difference = compare(PADDED, ort=("1.17", "1.99"))
    assert any("1.99 is newer than the kernel tables" in note for note in difference.notes)
    assert difference.placement


WRONG = {
    "no release": (("old", "1.31"), {}, "no kernel table for ONNX Runtime 'old': expected one of 1.17"),
    "no table": (("1.10", "1.31"), {}, "no kernel table for ONNX Runtime '1.10': expected one of 1.17"),
    "one release": (("1.31", "1.31.1"), {}, "are the same: name two minor releases"),
    "a tolerance": (("1.30", "1.31"), {"tolerance": 0.0, "python": [sys.executable]}, "expected a number above 0"),
    "a device": (("1.30", "1.31"), {"device": "abacus"}, "unknown device"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_asked(case):
    releases, options, words = WRONG[case]
    with pytest.raises(OptionError, match=words):
        compare(PLAIN, ort=releases, **options)


# ---- interpreters ----


@pytest.fixture
def interpreter(tmp_path):
    """Make a program that answers as the interpreter of another release, though it is this one."""

    def make(version, name="python", head=f"#!{sys.executable}\n"):
        script = tmp_path / name
        script.write_text(
            f"{head}"
            "import json, pathlib, sys\n"
            "import onnxruntime\n"
            f"onnxruntime.__version__ = {version!r}\n"
            "import runpy\n"
            "runpy.run_path(sys.argv[2], run_name='__main__')\n"
        )
        script.chmod(0o755)
        return str(script)

    return make


def test_the_installed_release_serves_as_both():
    difference = compare(PLAIN, ort=(RELEASE, INSTALLED), python=[sys.executable, sys.executable], inputs=SAMPLES)
    (run,) = difference.runs
    assert (run.old.release, run.new.release) == (INSTALLED, INSTALLED)
    assert (run.old.message, run.new.message, run.samples, run.given) == ("", "", 1, True)
    assert (run.operators, run.fusions, run.departures, run.excess) == ((), (), (), 0.0)
    assert run.outputs["y"].max_abs == 0.0
    assert (difference.not_run, difference.something_changes) == ("", False)


def test_the_installed_release_needs_no_path(interpreter):
    difference = compare(PLAIN, PLAIN, ort=("1.20", RELEASE), python=[interpreter("1.20.1")])
    assert [(run.model, run.old.release, run.new.release) for run in difference.runs] == [
        ("float32", "1.20.1", INSTALLED),
        ("low", "1.20.1", INSTALLED),
    ]
    assert not difference.runs[0].given


def test_interpreters_are_told_by_their_versions(interpreter):
    paths = [interpreter("1.29.0", "b"), interpreter("1.20.1", "a")]
    (run,) = compare(PLAIN, ort=("1.20", "1.29"), python=paths).runs
    assert [run.old.python, run.new.python] == paths[::-1]


def test_a_release_without_a_table_runs_all_the_same(interpreter):
    difference = compare(PLAIN, ort=("1.10", RELEASE), python=[interpreter("1.10.0")])
    assert difference.runs[0].old.release == "1.10.0"
    assert "the tables say nothing: no kernel table for ONNX Runtime '1.10'" in difference.notes[0]


# How the interpreter is named -> words of the error.
MISTAKEN = {
    "missing": (lambda make: ["no/python", sys.executable], "is no program that can be run"),
    "no program": (lambda make: [make("1", "python", "#!/no/such/program\n")], "cannot be started as a Python"),
    "another program": (lambda make: ["/bin/true"], "is no Python interpreter that runs a program"),
    "another release": (lambda make: [make("1.28.0")], "holds ONNX Runtime 1.28.0, which is neither 1.20 nor"),
    "one twice": (lambda make: [make("1.20.1", "a"), make("1.20.0", "b")], "and so does another of the interpreters"),
    "three": (lambda make: ["a", "b", "c"], "3 interpreters are named for two releases"),
    "none of the old one": (lambda make: [sys.executable], "none of the interpreters holds ONNX Runtime 1.20"),
}


@pytest.mark.parametrize("case", MISTAKEN)
def test_a_wrong_interpreter_is_refused(case, interpreter):
    paths, words = MISTAKEN[case]
    with pytest.raises(InputError, match=words):
        compare(PLAIN, ort=("1.20", RELEASE), python=paths(interpreter))


def test_an_interpreter_without_onnx_runtime_is_refused(tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$2"\n')  # without site packages
    script.chmod(0o755)
    with pytest.raises(InputError, match="cannot import ONNX Runtime and numpy: ModuleNotFoundError"):
        Interpreter(str(script)).version  # noqa: B018  which is asked when it is first wanted


# ---- what runs ----


def test_a_model_that_a_release_refuses_is_a_finding(tmp_path):
    unknown = parse("(float[2,4] x) => (float[2,4] y) { [odd] y = Odd (x) }")
    unknown.graph.node[0].domain = "com.example"
    unknown.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    difference = compare(
        unknown, ort=(RELEASE, INSTALLED), python=[sys.executable, sys.executable], inputs=SAMPLES, level="O1"
    )
    (run,) = difference.runs
    assert (run.old.stage, run.new.stage) == ("load", "load")
    assert "com.example" in run.old.message
    assert not run.differs  # both refuse it
    assert run.outputs == {}


def test_values_that_numpy_has_no_type_for_are_refused():
    model = parse("(bfloat16[2] x) => (bfloat16[2] y) { y = Identity (x) }")
    with pytest.raises(InputError, match="cannot be handed to another interpreter"):
        compare(model, ort=(RELEASE, INSTALLED), python=[sys.executable] * 2, inputs={"x": np.zeros(2, "f")})


def test_a_release_that_dies_is_a_finding():
    (run,) = compare(
        CRASHING,
        ort=(RELEASE, INSTALLED),
        python=[sys.executable, sys.executable],
        inputs={"x": array(5, 2, 4).astype(F16)},
    ).runs
    assert "crashed (SIGSEGV)" in run.old.message


def fake(said, run):
    """Return an interpreter that runs a model in this one, but changes results.

    Args:
        said: the version that it says.
        run: changes results, name -> array, of a list of nodes' names; or returns a message.
    """

    class Changed(Interpreter):
        version = said

        def run(self, model, feeds, results, *, outputs=(), **options):
            reply = super().run(model, feeds, results, outputs=outputs, **options)
            names = list(outputs) or [info.name for info in onnx.load(model, load_external_data=False).graph.output]
            for file in results:
                with np.load(file) as stored:
                    arrays = {names[int(key)]: stored[key] for key in stored.files}
                changed = run(arrays)
                if isinstance(changed, str):
                    return RunReply(stage="run", message=changed)
                np.savez(file, **{str(names.index(name)): changed[name] for name in changed})
            return reply

    return Changed(sys.executable)


CHAIN = parse(
    "(float[2,4] x) => (float[2,4] y) { [first] a = MatMul (x, w) [second] b = Relu (a) [third] c = MatMul (b, w) "
    "[last] y = Sigmoid (c) }",
    w=array(4, 4),
)


def changing(**factors):
    return lambda arrays: {name: value * np.float32(factors.get(name, 1)) for name, value in arrays.items()}


@pytest.fixture
def run_with(monkeypatch):
    def run(change, model=CHAIN, **options):
        both = Both(Interpreter(sys.executable), fake("1.99.0", change))
        assert both.old.version == INSTALLED
        monkeypatch.setattr(f"{ENGINE}.interpreters_of", lambda *_: contextlib.nullcontext(both))
        try:
            (result,) = compare(model, ort=("1.30", "1.31"), python=["a", "b"], inputs=SAMPLES, **options).runs
        finally:
            both.old.end()
            both.new.end()
        return result

    return run


def test_the_first_result_that_departs_is_named(run_with):
    run = run_with(changing(a=1 + 2**-20, b=1 + 2**-20, c=1.5, y=1.1))
    unfused = [row for row in run.departures if not row.optimized]
    assert [(row.node, row.op, row.value, row.rounding) for row in unfused] == [
        ("first", "MatMul", "a", True),
        ("third", "MatMul", "c", False),
    ]
    assert unfused[1].error == pytest.approx(0.5, rel=1e-4)
    assert run.excess == pytest.approx(0.1 / 1e-3, rel=1e-3)
    assert run.differs
    assert [row.optimized for row in run.departures].count(True) == 2


def test_a_tolerance_is_the_users(run_with):
    assert run_with(changing(y=1.1), tolerance=0.2).excess == pytest.approx(0.5, rel=1e-3)


def test_one_release_that_does_not_run_is_a_difference(run_with):
    run = run_with(lambda arrays: "bad allocation")
    assert (run.new.stage, run.new.message, run.old.message) == ("run", "bad allocation", "")
    assert run.differs


def test_results_are_fetched_in_groups_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("amp_transpiler.diagnosis.releases.departure._GROUP_BYTES", 256e3)
    count, groups = 40, []
    nodes = "".join(f"[n{i}] v{i + 1} = Relu (v{i}) " for i in range(count))
    model = parse(f"(float[2,4] v0) => (float[2,4] v{count}) {{ {nodes} }}")

    def run_both(file, names):
        groups.append(len(names))
        for side in ("old", "new"):
            np.savez(tmp_path / f"{side}.npz", **{str(i): np.zeros(5_000, np.float32) for i in range(len(names))})
        return tmp_path / "old.npz", tmp_path / "new.npz"

    values = [f"v{i + 1}" for i in range(count)]
    assert list(departures(model, values, tmp_path, run_both, optimized=False)) == []
    assert sum(groups) == count
    assert max(groups) <= 12  # of 20 kB each in 256 kB


@pytest.mark.parametrize(("coarsest", "rounding"), [("float32", False), ("float16", True)])
def test_what_follows_from_float16_has_its_rounding(tmp_path, coarsest, rounding):
    model = parse("(float[2,4] x) => (float[2,4] y) { [only] y = Relu (x) }")

    def run_both(file, names):
        np.savez(tmp_path / "old.npz", **{"0": np.ones(8, np.float32)})
        np.savez(tmp_path / "new.npz", **{"0": np.full(8, 1.001, np.float32)})
        return tmp_path / "old.npz", tmp_path / "new.npz"

    (row,) = departures(model, ["y"], tmp_path, run_both, optimized=False, coarsest=coarsest)
    assert row.rounding is rounding
    assert row.error == pytest.approx(0.001, rel=1e-3)


def test_a_group_that_does_not_run_is_left_out(tmp_path):
    model = parse("(float[2,4] x) => (float[2,4] y) { [only] y = Relu (x) }")
    assert list(departures(model, ["y"], tmp_path, lambda *_: None, optimized=True)) == []
    assert list(tmp_path.iterdir()) == []


# ---- optimized graphs ----

GELU = "[half] h = Mul (x, k) [erf] e = Erf (x) [one] o = Add (e, k) [gelu] g = Mul (h, o) [out] y = Relu (g)"
SOURCE = parse(f"(float[2] x) => (float[2] y) {{ {GELU} }}", k=np.float32(0.5)).graph
FUSED = parse(
    "(float[2] x) => (float[2] y) { [f] g = com.microsoft.Gelu (x) [out] y = Relu (g) }",
    imports=', "com.microsoft": 1',
).graph


def test_a_fusion_of_one_release_is_named_with_the_nodes_that_it_stands_for():
    (row,) = fusion_changes(SOURCE, (SOURCE, FUSED), ("1.24.4", "1.31.1"))
    assert (row.release, row.op, row.value) == ("1.31.1", "com.microsoft::Gelu", "g")
    assert sorted(row.nodes) == ["erf", "gelu", "half", "one"]
    assert fusion_changes(SOURCE, (FUSED, FUSED), ("a", "b")) == ()


def test_operators_are_counted_by_domain():
    counts = {row.op: (row.old, row.new) for row in operator_changes(SOURCE, FUSED)}
    assert counts == {"Add": (1, 0), "Erf": (1, 0), "Mul": (2, 0), "com.microsoft::Gelu": (0, 1)}


def test_what_both_graphs_compute_can_be_compared():
    assert surviving_values(SOURCE, FUSED, SOURCE) == ["g", "y"]


# ---- files ----


def test_weights_beside_the_model_are_brought_along(tmp_path):
    model = parse("(float[2,4] x) => (float[2,512] y) { [up] y = MatMul (x, w) }", w=array(4, 512))
    (tmp_path / "deep").mkdir()
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = sorted(tmp_path.iterdir())
    (run,) = compare(path, ort=(RELEASE, INSTALLED), python=[sys.executable] * 2, inputs=SAMPLES).runs
    assert run.outputs["y"].max_abs == 0.0
    assert sorted(tmp_path.iterdir()) == before


# ---- a real second release ----

OTHER = "1.24.4"
_PATIENCE = 300  # seconds that making an environment may take


def other_python(folder):
    """Return the Python of an environment with another release, a new one unless a variable names one.

    Args:
        folder: where a new one is made.
    """
    if (named := os.environ.get("AMP_TRANSPILER_OTHER_PYTHON")) is not None:
        return named
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", folder],
        [python, "-m", "pip", "install", "-q", f"onnxruntime=={OTHER}", "numpy"],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE)
        except (OSError, subprocess.SubprocessError):
            pytest.skip(f"an environment with onnxruntime {OTHER} cannot be made here")
    return python


@pytest.mark.slow
def test_a_real_second_release(tmp_path):
    python = other_python(tmp_path / "env")
    model = parse(
        "(float[2,4] x) => (float[2,4] y) { [up] h = MatMul (x, w) [gelu] g = Gelu (h) [norm] y = LayerNormalization "
        "(g, s, b) }",
        opset=20,
        w=array(4, 4),
        s=np.ones(4, np.float32),
        b=np.zeros(4, np.float32),
    )
    (run,) = compare(model, ort=("1.24", RELEASE), python=[python], inputs=SAMPLES).runs
    assert (run.old.release, run.new.release) == (OTHER, INSTALLED)
    assert (run.old.message, run.new.message) == ("", "")
    assert run.excess < 1
