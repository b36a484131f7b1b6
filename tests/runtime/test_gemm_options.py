"""The format in which float16 matrix products accumulate: one choice a process, on CUDA only.

No GPU takes part: sessions are opened on the CPU in its place.
"""

from __future__ import annotations

import logging
import os

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import cuda, gemm_options, ort, places, session
from amp_transpiler.runtime.executor import StepExecutor
from amp_transpiler.runtime.gemm_options import VARIABLE
from amp_transpiler.runtime.opening import Opening
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.session import Session
from amp_transpiler.runtime.values import to_ort

CUDA = CUDAPlace(0)


def model(dtype):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({dtype}[2,3] x, {dtype}[3,2] w) => ({dtype}[2,2] y)'
        " { y = MatMul(x, w) }"
    )


LOW = model("float16")


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process without a CUDA session so far and without the variable; both come back as they were."""
    monkeypatch.setenv(VARIABLE, "")  # registers what was there, so that whatever a test sets is undone
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(gemm_options, "_process", gemm_options._Process())
    return gemm_options._process


@pytest.fixture
def opened(monkeypatch):
    """Places that sessions were opened for, on the CPU instead, with the variable's value at that moment."""
    sessions = []

    def on_cpu(place, message, settings):
        sessions.append((place, os.environ.get(VARIABLE)))
        return CPUPlace().open_session(message, settings)

    monkeypatch.setattr(CUDAPlace, "open_session", on_cpu)
    return sessions


# ---- what is refused before anything is opened ----


@pytest.mark.parametrize("make", [lambda **options: Session(LOW, CPUPlace(), **options), static.Executor])
@pytest.mark.parametrize("setting", ["float32", "", None])
def test_an_unknown_setting_lists_the_two(make, setting):
    with pytest.raises(OptionError, match="'fp32' or 'low', got"):
        make(tiling_accum=setting)


@pytest.mark.parametrize("make", [lambda *args, **options: Session(LOW, *args, **options), static.Executor])
@pytest.mark.parametrize("given", [[CPUPlace()], []], ids=["asked for", "by default"])
def test_the_cpu_has_no_such_option(monkeypatch, process, make, given):
    monkeypatch.setenv(places.PLACE_VARIABLE, "cpu")
    with pytest.raises(EnvironmentProblem, match="CUDA provider, but this runs on CPU"):
        make(*given, tiling_accum="low")
    assert VARIABLE not in os.environ
    assert process.chosen is None


def test_the_cpu_takes_no_part_in_the_choice(monkeypatch, process):
    monkeypatch.setenv(VARIABLE, "1")
    Session(LOW, CPUPlace())
    assert process.chosen is None


# ---- the choice of a process ----


@pytest.mark.parametrize(
    ("setting", "before", "at_opening"),
    [
        ("fp32", None, None),
        ("fp32", "", ""),
        ("fp32", "0", "0"),
        ("fp32", "6", "6"),
        ("low", None, "1"),
        ("low", "", "1"),
        ("low", "1", "1"),
        ("low", "5", "5"),
    ],
)
def test_the_variable_says_so_when_a_session_opens(monkeypatch, opened, process, setting, before, at_opening):
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    Session(LOW, CUDA, tiling_accum=setting)
    Session(LOW, CUDA, tiling_accum=setting)
    assert opened == [(CUDA, at_opening)] * 2
    assert process.chosen == setting


def test_the_default_is_fp32(opened, process):
    Session(LOW, CUDA)
    assert opened == [(CUDA, None)]
    assert process.chosen == "fp32"


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("low", "0", "accumulates float16 matrix products in float32: unset it, or ask for tiling_accum='fp32'"),
        ("low", "2", f"{VARIABLE}=2"),
        ("fp32", "1", "accumulates float16 matrix products in float16: unset it, or ask for tiling_accum='low'"),
        ("fp32", "7", f"{VARIABLE}=7"),
        ("fp32", "yes", "is no integer"),
        ("low", " 1", "is no integer"),
    ],
)
def test_a_variable_that_contradicts_is_refused(monkeypatch, opened, process, setting, value, words):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(EnvironmentProblem, match=words):
        Session(LOW, CUDA, tiling_accum=setting)
    assert not opened
    assert process.chosen is None
    assert os.environ[VARIABLE] == value


@pytest.mark.parametrize(("first", "second"), [("fp32", "low"), ("low", "fp32")])
def test_another_choice_in_the_same_process_is_refused(opened, first, second):
    Session(LOW, CUDA, tiling_accum=first)
    with pytest.raises(
        EnvironmentProblem, match=f"has tiling_accum='{first}'.* choose one for all .* in its own process"
    ):
        Session(LOW, CUDA, tiling_accum=second)
    Session(LOW, CUDA, tiling_accum=first)
    assert len(opened) == 2


@pytest.mark.parametrize("value", [None, ""])
def test_a_session_that_does_not_open_chooses_nothing(monkeypatch, process, value):
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: "no NVIDIA device answers")
    with pytest.raises(EnvironmentProblem, match="no NVIDIA device answers"):
        Session(LOW, CUDA, tiling_accum="low")
    assert os.environ.get(VARIABLE) == value
    assert process.chosen is None


# ---- programs that it does nothing for ----


@pytest.mark.parametrize(("dtype", "warned"), [("float16", False), ("bfloat16", True), ("float", True)])
def test_a_program_without_float16_runs_with_a_warning(monkeypatch, opened, caplog, dtype, warned):
    def open_form(*_args):
        return Opening(CUDA.open_session(model("float").SerializeToString(), ort.SessionSettings()))

    monkeypatch.setattr(session, "open_form", open_form)
    with caplog.at_level(logging.WARNING):
        Session(model(dtype), CUDA, tiling_accum="low")
    assert ("changes nothing: the program has no float16 value" in caplog.text) is warned
    assert len(opened) == 1


# ---- executors ----


def step(monkeypatch, **options):
    """Run a linear layer's programs on a `CUDAPlace` that is the CPU, training at two batch sizes."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 3])
        loss = functional.mse_loss(static.nn.fc(x, size=1), static.data("y", [None, 1]))
        optimizer.SGD(0.001).minimize(loss, startup)
    executor = static.Executor(CUDA, **options)
    monkeypatch.setattr(StepExecutor, "_run", _run_on_cpu)
    monkeypatch.setattr(StepExecutor, "_converted", lambda _self, scope, name, _dtype: scope.held(name))
    executor.run(startup, scope=scope)
    feed = {"x": np.ones((4, 3), np.float32), "y": np.ones((4, 1), np.float32)}
    return [executor.run(main, {k: v[:rows] for k, v in feed.items()}, [loss], scope=scope) for rows in (4, 2)]


def _run_on_cpu(_self, compiled, feeds, state):
    arguments = {**{name: to_ort(array) for name, array in feeds.items()}, **state}
    if compiled.session is None:
        return {}
    names = [output.name for output in compiled.session.get_outputs()]
    return dict(zip(names, compiled.session.run_with_ort_values(names, arguments), strict=True))


def test_an_executor_sets_it_before_its_first_session(monkeypatch, opened, process, caplog):
    with caplog.at_level(logging.WARNING):
        step(monkeypatch, tiling_accum="low")
    assert opened == [(CUDA, "1")] * 2  # one for each shape that is fed; the startup program needs none
    assert process.chosen == "low"
    assert caplog.text.count("changes nothing") == 1  # a float32 program, said once


def test_an_executor_touches_nothing_by_default(monkeypatch, opened, caplog):
    with caplog.at_level(logging.WARNING):
        step(monkeypatch)
    assert opened == [(CUDA, None)] * 2
    assert "changes nothing" not in caplog.text


def test_sessions_and_executors_share_the_choice(monkeypatch, opened):
    Session(LOW, CUDA, tiling_accum="low")
    with pytest.raises(EnvironmentProblem, match="has tiling_accum='low'"):
        step(monkeypatch)
    assert len(opened) == 1
