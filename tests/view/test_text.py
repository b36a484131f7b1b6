"""`print(program)`: types, shapes, precision, casts, regions and roles in words, and a length that is bounded."""

import onnx
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.paddle.utils import unique_name
from tests.support import array, parse
from tests.work import counted_work

MODEL = (
    "(float[n,4] x) => (float[n,4] y) { [first] h = MatMul (x, w) [soft] s = Softmax <axis = 1> (h) y = Add (s, one) }"
)


def loaded():
    return amp.load(parse(MODEL, w=array(4, 4), one=array(1)))


def converted(**options):
    program = loaded()
    amp.mark_region(program, "disable_amp", nodes="soft")
    amp.cast_model_to_fp16(program, **options)
    return program


def built():
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        with amp.fp16_guard():
            y = static.nn.fc(x, 4)
        loss = F.mse_loss(y, x)
        wrapped = amp.decorate(amp.optimizer.Adam(0.1, multi_precision=True), use_pure_fp16=True)
        wrapped.minimize(loss, startup)
    return main, loss


def lines_of(program, limit=None):
    return program.to_text(limit).splitlines()


def test_types_and_shapes_are_inferred_and_the_program_is_not_changed():
    program = loaded()
    lines = lines_of(program)
    assert lines[0] == "Program 'agraph': 3 nodes, opset 18"
    assert lines[1] == "  3 float32"
    assert "  x: float32[n, 4]" in lines
    assert "  w: float32[4, 4]" in lines
    assert "  float32  s = Softmax(h, axis=1) -> float32[n, 4]" in lines
    assert program.value("h").type is None, "a copy is typed"


def test_a_constant_of_one_number_is_shown():
    assert any(line.startswith("  one: float32[1] = ") for line in lines_of(loaded()))


def test_casts_regions_and_precision():
    lines = lines_of(converted())
    assert "  cast     x__amp_fp16 = Cast(x, to=FLOAT16) -> float16[n, 4]  # inserted" in lines
    assert any(line.startswith("  float16  h = MatMul(x__amp_fp16, w) -> float16[n, 4]") for line in lines)
    [soft] = [line for line in lines if "Softmax" in line]
    assert soft.startswith("  float32 ")
    assert soft.endswith("# in disable_amp")
    assert "casts between floats" in lines[1]
    assert "1 in disable_amp" in lines[1]


def test_a_training_program_shows_its_state_roles_and_updates():
    main, loss = built()
    text = main.to_text()
    for title in ("inputs", "parameters", "state", "nodes", "outputs", "updates"):
        assert title in text.splitlines()
    [weight] = [line for line in text.splitlines() if line.startswith("  fc_0.w_0: ")]
    assert weight == "  fc_0.w_0: float16[4, 4]"
    assert "# backward, in fp16_guard" in text
    assert "# optimize" in text
    assert f"  {loss.name}: float32[]" in text
    assert any(line.startswith("  fc_0.w_0 <- ") for line in text.splitlines())


def test_frozen_parameters_and_wrong_outputs_are_told():
    program = static.from_onnx(parse(MODEL, w=array(4, 4), one=array(1)), static.Program(), frozen="w")
    program.outputs.append("nothing")
    text = str(program)
    assert "  w: float32[4, 4] (frozen)" in text
    assert "  nothing: not in the program" in text


def test_a_training_step_that_was_found_is_shown():
    step = """(float[4,4] w, float[2,4] x) => (float[4,4] w_new) {
        h = MatMul (x, w) t = Transpose (x) g = MatMul (t, h) s = Mul (g, rate) w_new = Sub (w, s)
    }"""
    report = amp.transpile(parse(step, rate=array(1)), verify=False, state={"w": "w_new"})
    lines = lines_of(report.program)
    assert lines[-2] == "training step"
    assert lines[-1].startswith("  w <- w_new: parameter")


def test_bodies_and_functions_are_shown():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "local": 1]>
    g (float[2] x, bool c) => (float[2] y) {
        b = If(c) < then_branch = t () => (float[2] p) { p = Exp(x) },
                    else_branch = e () => (float[2] q) { q = local.twice(x) } >
        y = Relu(b)
    }
    <domain: "local", opset_import: ["": 21]> twice (u) => (v) { v = Add(u, u) }""")
    lines = lines_of(amp.load(model))
    assert "    then_branch():" in lines
    assert "      float32  p = Exp(x) -> float32[2]" in lines
    assert "      return p" in lines
    assert "function local::twice" in lines
    assert any(line.startswith("           v = Add(u, u) -> ?") for line in lines)


def test_names_that_a_terminal_cannot_show_are_escaped():
    program = loaded()
    program.value("h").name = "evil\x1b[31m\nname" + "x" * 500
    program.touch()
    assert "\x1b" not in str(program)
    assert max(map(len, lines_of(program))) < 250


def test_a_report_names_a_program_in_short():
    report = amp.transpile(loaded(), verify=False, prefer="size")
    assert report.source == "Program('agraph', 3 nodes)"


def long_model(nodes):
    calls = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(nodes))
    return parse(f"(float[4] v0) => (float[4] v{nodes}) {{ {calls} }}")


def test_a_long_program_is_cut_and_says_how_to_get_all():
    program = amp.load(long_model(500))
    lines = str(program).splitlines()
    assert len(lines) < 230
    assert "  ... cut after 200 lines: program.to_text() gives all of them" in lines
    assert len(lines_of(program)) > 500
    assert "cut after" not in program.to_text()
    assert len(lines_of(program, 5)) < 20


def test_the_repr_stays_short():
    assert repr(amp.load(long_model(500))) == "Program('agraph', 500 nodes)"


@pytest.mark.slow
def test_twenty_thousand_nodes_are_printed_quickly():
    node = onnx.helper.make_node
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    info = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("v0", "v20000")]
    graph = onnx.helper.make_graph(nodes, "g", [info[0]], [info[1]])
    imports = [onnx.helper.make_opsetid("", 18)]
    program = amp.load(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))
    with counted_work() as work:
        text = str(program)
    assert work.calls < 100 * 20_000
    assert len(text) < 40_000
