"""The lints of `scripts/lints.py` over training steps and inference models: what fails today is listed, and no more.

A row of `FAULTS` that no longer happens fails its test, as does a finding without a row.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib

import pytest

import lints
from tests.counted import Counted

PROGRAM = pathlib.Path(__file__).with_name("linted_models.py")
STEP_PROGRAM = pathlib.Path(__file__).with_name("linted_steps.py")

EVERY = ("fp32 float32", "O1 float16", "O2 float16", "O2 bfloat16")
FLOAT16 = ("O1 float16", "O2 float16")
BFLOAT16 = ("O2 bfloat16",)
NETWORKS = ("raf", "transformer", "rocm", "resnet18")  # ResNet-50's blocks are tried by hand: each form takes a minute

MODELS = ("language head", "waveform encoder", "bert_1layer", "rocm_convnet", "paddle_lenet")
FORMATS = ("fp32", "float16", "bfloat16")

# Which later work mends it.
SPEED = "the training step's speed"
FUSION = "inference fusion"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A lint that fails today.

    Attributes:
        names: networks or models.
        forms: their forms.
        lint: the lint.
        work: the later work that mends it.
    """

    names: tuple[str, ...]
    forms: tuple[str, ...]
    lint: str
    work: str

    def programs(self) -> list[str]:
        return [f"{name} {form}" for name, form in itertools.product(self.names, self.forms)]


FAULTS = (
    Fault(("resnet18",), (*FLOAT16, *BFLOAT16), "long dot product", SPEED),
    Fault(("resnet18",), BFLOAT16, "host copy", SPEED),
    Fault(("language head",), FORMATS, "misaligned product", FUSION),
)

STEPS = [f"{network} {form}" for network, form in itertools.product(NETWORKS, EVERY)]
INFERENCE = [f"{model} {form}" for model, form in itertools.product(MODELS, FORMATS)]


def expected(program: str) -> set[str]:
    """The lints that fail today."""
    return {fault.lint for fault in FAULTS if program in fault.programs()}


def reported(findings: dict[str, list[str]]) -> set[str]:
    """The lints with findings."""
    return {lint for lint, places in findings.items() if places}


@pytest.fixture(scope="module")
def inference(tmp_path_factory):
    """The findings of all models of `linted_models.py`."""
    return Counted(tmp_path_factory.mktemp("inference")).program(PROGRAM)


@pytest.fixture(scope="module")
def steps_of(tmp_path_factory):
    """Return what gives the findings of a network's steps at every form: one process runs them all."""
    return functools.cache(
        lambda network: Counted(tmp_path_factory.mktemp("steps")).program(STEP_PROGRAM, network, *EVERY)
    )


def test_the_rows_are_of_programs_and_lints_that_exist_and_none_comes_twice():
    for fault in FAULTS:
        assert fault.lint in lints.LINTS
        assert set(fault.programs()) <= {*STEPS, *INFERENCE}
        assert fault.work == (SPEED if set(fault.programs()) <= set(STEPS) else FUSION)
    rows = [(program, fault.lint) for fault in FAULTS for program in fault.programs()]
    assert len(set(rows)) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("program", STEPS)
def test_a_training_step_fails_the_lints_that_are_listed_alone(steps_of, program):
    network, _, form = program.partition(" ")
    findings = steps_of(network)[form]
    assert reported(findings) == expected(program), findings


@pytest.mark.slow
@pytest.mark.parametrize("program", INFERENCE)
def test_an_inference_model_fails_the_lints_that_are_listed_alone(inference, program):
    assert reported(inference[program]) == expected(program), inference[program]
