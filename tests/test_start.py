"""What is imported before the first result: counted, not timed."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.support import array, parse

MODEL = parse("(float[8,64] x) => (float[8,64] y) { y = MatMul (x, w) }", w=array(64, 64))

COUNT = """
import sys
print(sum(name.partition(".")[0] == "amp_transpiler" for name in sys.modules))
print(*(name for name in ("sympy", "torch", "rich", "asyncio", "unittest") if name in sys.modules))
"""

CAST = """
import amp_transpiler as amp
program = amp.load("m.onnx")
amp.cast_model_to_fp16(program)
amp.save(program, "m.fp16.onnx")
amp.Session("m.fp16.onnx", amp.CPUPlace())
"""

TRANSPILE = "import amp_transpiler as amp\namp.transpile('m.onnx', 'r.onnx', cache=False)\n"
COMMAND = "from amp_transpiler.cli import main\nassert main(['m.onnx', '-o', 'r.onnx', '-q', '--no-cache']) == 0\n"
MISSING = "from amp_transpiler.cli import main\nassert main(['missing.onnx']) == 2\n"
WORKER = """
import amp_transpiler.child_process.worker
import amp_transpiler.runtime.session
"""


@pytest.fixture
def folder(tmp_path):
    onnx.save(MODEL, tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "most"),
    [
        pytest.param("import amp_transpiler", 7, id="import"),
        pytest.param(CAST, 150, id="cast, save and session"),
        pytest.param(TRANSPILE, 307, id="transpile"),
        pytest.param(COMMAND, 340, id="command"),  # seven of them declare and read the options
        pytest.param(MISSING, 91, id="no model"),  # nothing that reads one
        pytest.param(WORKER, 79, id="process that checks"),
    ],
)
def test_few_modules_are_imported(code, most, folder):
    """A limit that is exceeded wants an import moved to where it is needed, or has a reason and is raised."""
    result = subprocess.run(
        [sys.executable, "-c", code + COUNT], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    count, *others = result.stdout.split()
    assert int(count) <= most
    assert others == []


@pytest.mark.parametrize("names", [["transpile"], ["Session", "load", "save"], ["paddle"]])
def test_collection_goes_on_after_an_import(names):
    code = f"import gc, amp_transpiler as amp\nfor name in {names}: getattr(amp, name)\nprint(gc.isenabled())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_collection_that_was_off_stays_off():
    code = "import gc; gc.disable()\nimport amp_transpiler as amp\namp.transpile\nprint(gc.isenabled())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_written_model_computes_the_same(folder):
    """The process that checks was started before the model was read."""
    result = subprocess.run([sys.executable, "-c", COMMAND], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (weight,) = onnx.load(folder / "r.onnx").graph.initializer
    assert (onnx.numpy_helper.to_array(weight) == np.asarray(array(64, 64))).all()
