"""A low program beside its emulation, on a device that computes what the emulation says but for a planted fault."""

import contextlib
import functools

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.diagnosis import debug as engine, on_device
from amp_transpiler.diagnosis.departures import Compared, Form, departures, exposed
from amp_transpiler.diagnosis.on_device import fused_by_runtime, run_on_device
from amp_transpiler.diagnosis.wrong_kernels import by_effect
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.report.diagnosis import Departure
from amp_transpiler.verification import default_device
from amp_transpiler.verification.default_device import CheckedDevice
from tests.diagnosis.findings import findings_of
from tests.diagnosis.programs import converted, model_of, program_of
from tests.report.test_diagnosis_forms import text_of
from tests.support import array, parse
from tests.verification.gate import REFUSAL

NAME = "NVIDIA H100 80GB HBM3"
GRAPH = """(float[2,4] x) => (float[2,4] y, float[2,4] z) {
    [first] h = MatMul(x, w)
    [second] i = Sigmoid(h)
    [third] y = MatMul(i, v)
    [other] z = Tanh(x)
}"""
VALUES = {"h": "first", "i": "second", "y": "third", "z": "other"}
X = {"x": array(2, 4, seed=9)}


def halved(array):
    return array * array.dtype.type(0.5)


def broken(array):
    return np.full_like(array, np.inf)


@contextlib.contextmanager
def with_faults(faults, program, *, only_with=None):
    """Open a program as a device whose kernels have faults: value -> what becomes of it; its readers get that.

    Args:
        faults: the name of a value in the program -> what the kernel makes of it.
        program: the program.
        only_with: an operator without which there is no fault.
    """
    is_faulty = only_with is None or any(node.op_type == only_with for node in program.model.graph)
    with open_program(program) as plain:

        class Device:
            inputs = plain.inputs

            def run(self, feeds, fetch=None):
                results = plain.run(feeds, fetch)
                return [
                    faults[name](result) if is_faulty and name in faults else result
                    for name, result in zip(fetch, results, strict=True)
                ]

        yield Device()


def compared(allowed=0.01, size=32):
    return {name: Compared(node, name, allowed, size) for name, node in VALUES.items()}


def departed(faults, *, limit=1e9, **options):
    low = program_of(converted(model_of(GRAPH)))
    names = {str(value.name) for node in low.model.graph for value in node.outputs}
    results = {name: row for name, row in compared(**options).items() if name in names}
    assert len(results) == len(VALUES)
    form = Form("as written", low, functools.partial(with_faults, faults))
    return departures(low, form, results, [X, X], limit)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({}, []),
        ({"h": halved}, ["first"]),
        ({"h": halved, "i": halved}, ["first"]),  # what follows from a fault is left out
        ({"h": halved, "z": halved}, ["first", "other"]),
        ({"i": broken}, ["second"]),
        ({"y": lambda array: array * array.dtype.type(1.0 + 1 / 512)}, []),  # less than is allowed
    ],
)
@pytest.mark.parametrize("limit", [1e9, 1])  # all results in one group, and each in one of its own
def test_kernels_that_depart_are_named(faults, expected, limit):
    count, rows = departed(faults, limit=limit)

    assert count == len(VALUES)
    assert [row.node for row in rows] == expected


def test_a_departure_says_how_far_off_it_is():
    _, (row,) = departed({"h": halved})
    assert row.error == pytest.approx(0.5)
    assert (row.op, row.value, row.form, row.allowed) == ("MatMul", "h", "as written", 0.01)

    _, (row,) = departed({"h": broken})
    assert (row.infinite, row.finite) == (1.0, 0.0)


def test_what_only_the_emulation_has_infinite_is_a_departure_too():
    model = parse("(float16[2] x) => (float16[2] y) { [square] y = Mul(x, x) }")
    low = program_of(model)
    form = Form("as written", low, functools.partial(with_faults, {"y": lambda array: np.ones_like(array)}))

    _, (row,) = departures(low, form, {"y": Compared("square", "y", 0.01, 4)}, [{"x": np.float16([3e4, 1.0])}])

    assert (row.infinite, row.finite) == (0.0, 0.5)


def test_a_fault_of_a_fusion_is_told_from_that_of_a_kernel(monkeypatch):
    text = """(float[2,4] x) => (float[2,4] y) {
        [product] h = MatMul(x, w)
        [turn] t = Transpose<perm = [1, 0]>(h)
        [last] y = MatMul(t, h)
    }"""
    low = program_of(parse(text.replace("[2,4] y", "[4,4] y"), w=array(4, 4), ir_version=10))
    values = [value for node in low.model.graph for value in node.outputs]
    results = {str(v.name): Compared(str(v.producer().name), str(v.name), 0.01, 64) for v in values}
    fault = functools.partial(with_faults, {"y": halved}, only_with="FusedMatMul")
    monkeypatch.setattr(on_device, "_opened", lambda program, _: fault(program))

    runs, notes = run_on_device(low, results, [X], CheckedDevice("CPU", NAME))

    assert notes == ()
    assert runs.forms == ("as written", "fused")
    assert [(row.node, row.op, row.form) for row in runs.departures] == [
        ("last", "com.microsoft::FusedMatMul", "fused")
    ]


def test_a_form_that_does_not_run_is_a_note(monkeypatch):
    def refuse(program, _):
        raise REFUSAL

    monkeypatch.setattr(on_device, "_opened", refuse)
    low = program_of(converted(model_of(GRAPH)))

    runs, notes = run_on_device(low, compared(), [X], CheckedDevice("CPU", NAME))

    assert runs.forms == ()
    assert len(notes) == 2
    assert all(NAME in note and "planted" in note for note in notes)


def test_copies_between_devices_are_no_kernels():
    text = """(float[2] x) => (float[2] y) {
        h = Abs(x)
        c = MemcpyToHost(h)
        y = Neg(c)
    }"""
    program = amp.Program(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 17]> g {text}'))

    on_device._leave_copies_out(program)

    assert [node.op_type for node in program.model.graph] == ["Abs", "Neg"]
    assert [value.name for value in program.model.graph[-1].inputs] == ["h"]


def test_a_fused_program_has_the_values_that_it_had():
    text = "(float[2,4] x) => (float[2,4] y) { h = MatMul(x, w) y = Add(h, b) }"
    low = program_of(parse(text, w=array(4, 4), b=array(4)))
    fused = fused_by_runtime(low, "CPU")

    with open_program(exposed(fused, ["y"])) as session:
        (result,) = session.run(X)
    assert np.allclose(result, X["x"] @ array(4, 4) + array(4), atol=1e-5)


def test_kernels_are_ranked_by_what_they_add():
    findings = findings_of()
    names = list(findings.reference)
    departure = Departure(node="b", op="Sigmoid", value=names[1], form="as written", error=0.5, allowed=0.01)
    kernels = [engine.Suspect(node=n, op="", value=n, fault="kernel", contribution=1.0, why="") for n in names]

    ranked = by_effect(kernels, findings, [departure])

    assert [row.value for row in ranked] == [names[1], names[0], names[2]]
    assert ranked[0].contribution > 0.0
    assert ranked[1].contribution == 0.0


# ---- the whole diagnosis ----


@pytest.fixture
def device(monkeypatch):
    """Have a device answer whose kernels have the faults that the returned dict gets."""
    faults = {}
    monkeypatch.setattr(engine, "device_to_check", lambda wish: None if wish == "no" else CheckedDevice("CPU", NAME))
    monkeypatch.setattr(default_device, "default_place_name", lambda: "CUDA:0")
    monkeypatch.setattr(default_device, "hardware_name", lambda _: NAME)
    monkeypatch.setattr(on_device, "_opened", lambda program, _: with_faults(faults, program))
    return faults


def test_a_kernel_that_spoils_an_output_is_to_blame(device):
    device |= {"i": halved}

    diagnosis = amp.debug(model_of(GRAPH), inputs=X, cure=False, device_check="yes")

    assert diagnosis.guilty is not None
    assert (diagnosis.guilty.node, diagnosis.guilty.fault) == ("second", "kernel")
    assert NAME in diagnosis.guilty.why
    assert diagnosis.on_device is not None
    assert [row.node for row in diagnosis.on_device.departures] == ["second"]
    assert "1 kernel departs" in text_of(diagnosis)


def test_a_device_that_agrees_blames_nobody(device):
    diagnosis = amp.debug(model_of(GRAPH), inputs=X, cure=False, device_check="auto")

    assert diagnosis.guilty is None
    assert diagnosis.on_device is not None
    assert diagnosis.on_device.departures == ()
    assert "all agree" in text_of(diagnosis)


def test_no_device_is_asked_unless_the_user_wishes(device):
    device |= {"i": broken}
    assert amp.debug(model_of(GRAPH), inputs=X, cure=False).on_device is None


def test_where_no_device_answers(monkeypatch):
    monkeypatch.setattr(default_device, "default_place_name", lambda: "CPU")
    assert amp.debug(model_of(GRAPH), inputs=X, cure=False, device_check="auto").on_device is None
    with pytest.raises(EnvironmentProblem):
        amp.debug(model_of(GRAPH), inputs=X, cure=False, device_check="yes")
