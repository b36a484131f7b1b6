"""Tests where a CUDA device answers: the place of a run, and the tests about devices with a pretended one."""

import os
import pathlib
import subprocess
import sys

import pytest

from amp_transpiler.runtime.places import PLACE_VARIABLE

ROOT = pathlib.Path(__file__).resolve().parents[1]
ABOUT_DEVICES = (
    "tests/runtime/test_places.py",
    "tests/runtime/test_on_device.py",
    "tests/runtime/test_executor.py",
    "tests/runtime/test_gemm_options.py",
    "tests/cli/test_first_minutes.py",
)
PROGRAM = """
import json, os
from amp_transpiler.runtime.places import default_place
from amp_transpiler.child_process.child import default_place_name

found = [[str(default_place()), default_place_name()]]
os.environ["AMP_TRANSPILER_PLACE"] = "cpu"
print(json.dumps([*found, [str(default_place()), default_place_name()]]))
"""


def test_the_place_of_the_run_is_that_of_its_processes(request):
    place = request.config.getoption("--place")
    code = f"import os; print(os.environ[{PLACE_VARIABLE!r}])"
    if place == "default":
        pytest.skip("--place default: this run has the host's own default")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == os.environ[PLACE_VARIABLE] == place


@pytest.mark.slow
def test_the_variable_holds_where_a_device_answers(counted):
    assert counted.program(PROGRAM) == [["CUDA:0", "CUDA:0"], ["CPU", "CPU"]]


@pytest.mark.slow
def test_tests_about_devices_hold_with_a_pretended_one(counted):
    counted.program("print(1)")  # skips where no device can be pretended
    program = pathlib.Path(pytest.__file__).with_name("__main__.py")
    options = ["-m", "not slow", "-q", "-ra", "-p", "no:cacheprovider"]
    command = [sys.executable, "lab/launches.py", "run", program, *ABOUT_DEVICES, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert "the device is a pretended one" in done.stdout  # the reason of the tests that need a real one
