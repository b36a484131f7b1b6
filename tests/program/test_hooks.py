"""Programs and variables have Paddle's methods before a user imports anything of Paddle's."""

import subprocess
import sys

import onnx
import pytest

from tests.support import array, parse

MODEL = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4))

START = """
import sys
import amp_transpiler as amp
program = amp.load("m.onnx")
x = program.global_block().var("x")
PROVIDERS = [f"amp_transpiler.paddle.{name}" for name in ("tensor.methods", "static.io", "static.program")]
assert not [name for name in PROVIDERS if name in sys.modules], "loading needs no provider"
"""

USES = {
    "tensor.methods": """
assert x.reshape([8]).shape == (8,)
assert x.T.shape == (4, 2)
assert (x % 2).shape == (2, 4)
assert x[0].shape == (4,)
assert not hasattr(x, "no_such_method")
assert {"reshape", "T", "shape"} <= set(dir(x))
""",
    "static.io": """
assert program.state_dict() == {}
program.set_state_dict({})
""",
    "static.program": """
assert [op.type for op in program.ops] == ["matmul_v2"]
assert program.clone(for_test=True).num_blocks == 1
""",
}


@pytest.mark.parametrize("provider", USES)
def test_it_is_found_at_its_first_use(provider, tmp_path):
    onnx.save(MODEL, tmp_path / "m.onnx")
    code = f"{START}{USES[provider]}\nassert 'amp_transpiler.paddle.{provider}' in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
