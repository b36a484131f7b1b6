"""`GroupUpdates` on steps written as text: what becomes a group, and what stays as it is."""

import collections
import dataclasses

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.update_passes import CPU_WORTH, CUDA_WORTH, GroupUpdates, Worth, group_members

FREE = Worth(launch=1.0, bandwidth=1e30, most_elements=1 << 40)
EQUAL = dataclasses.replace(FREE, merges=False)


def step(count, body, inputs, updates, shape="4", shared="", head=""):
    """A step with `count` members: `{i}` in `body`, `inputs` and `updates` is the member's number."""
    shapes = [shape] * count if isinstance(shape, str) else shape
    ins = ", ".join(text.format(i=i, s=shapes[i]) for i in range(count) for text in inputs)
    outs = ", ".join(f"{kind.format(s=shapes[i])} {new.format(i=i)}" for i in range(count) for kind, _, new in updates)
    lines = "\n".join(line.format(i=i, s=shapes[i]) for i in range(count) for line in body)
    gradients = "\n".join(f"g{i} = Relu(x{i})" for i in range(count))
    text = f"""<ir_version: 10, opset_import: ["" : 21]> step ({ins}{", " + shared if shared else ""}) => ({outs})
    <float half = {{0.5}}> {{
        {gradients}
        {head}
        {lines}
    }}"""
    model = ir.from_onnx_text(text)
    infer_shapes(model)
    for node in model.graph:
        node.metadata_props[ROLE_KEY] = "backward" if node.op_type == "Relu" else "optimize"
    bindings = {old.format(i=i): new.format(i=i) for i in range(count) for _, old, new in updates}
    return model, bindings


def momentum(count, shape="4"):
    """Member i: v = v * 0.5 + g, w = w - rate * v; the forward pass reads w."""
    lines = ["a{i} = Mul(v{i}, half)", "u{i} = Add(a{i}, g{i})", "d{i} = Mul(rate, u{i})", "n{i} = Sub(w{i}, d{i})"]
    inputs = [f"float[{{s}}] {name}{{i}}" for name in "xvw"]
    updates = [("float[{s}]", "v{i}", "u{i}"), ("float[{s}]", "w{i}", "n{i}")]
    model, bindings = step(count, lines, inputs, updates, shape, "float rate")
    for value in [v for v in model.graph.inputs if v.name.startswith("w")]:
        reader = ir.node("Neg", [value], name=f"reads_{value.name}")
        reader.outputs[0].name = f"read_{value.name}"
        model.graph.insert_before(model.graph[0], reader)
    infer_shapes(model)
    return model, bindings


def grouped(model, bindings, fetched=(), worth=FREE):
    return run_pass(GroupUpdates(bindings, fetched, worth), model)


def kinds(model):
    return collections.Counter(node.op_type for node in model.graph)


def run(model, feeds):
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def check_numbers(before, model, result, bindings):
    """The grouped step computes what the single one does, to the bit."""
    rng = np.random.default_rng(0)
    feeds = {str(v.name): rng.normal(size=[int(n) for n in v.shape]).astype("f") for v in before.graph.inputs}
    expected = run(before, feeds)
    for stack in result.stacks:
        feeds[stack.name] = stack.joined(feeds.pop(name) for name in stack.members)
    results = run(model, feeds)
    for stack in result.stacks:
        results |= {bindings[n]: part for n, part in stack.parted(results.pop(result.updates[stack.name])).items()}
    assert results.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


@pytest.mark.parametrize(("count", "shape", "groups"), [(2, "4", 1), (32, "2,3", 1), (33, "2", 2), (65, "1", 3)])
def test_members_become_rows(count, shape, groups):
    """Of equal shapes: at most 32 in a group, of about equal size."""
    model, bindings = momentum(count, shape)
    before = model.clone()
    result = grouped(model, bindings, worth=EQUAL)
    assert (result.count, len(result.stacks)) == (groups, groups)
    assert kinds(model)["Sub"] == kinds(model)["Split"] == groups, "one node for a group"
    assert max(len(s.members) for s in result.stacks) - min(len(s.members) for s in result.stacks) <= 1
    check_numbers(before, model, result, bindings)


@pytest.mark.parametrize(
    ("shapes", "concats", "splits", "slices"),
    [
        (["4"] * 2, 1, 1, 0),
        (["4", "6"], 1, 0, 2),
        (["2,3", "3,2", "6"], 1, 0, 3),
        (["5", "2,3", "5", "4", "2,3"], 1, 2, 3),
        (["1"] * 33, 2, 1, 2),
        (["3"] * 40 + ["8,3"] * 2, 2, 3, 3),
    ],
)
def test_unequal_shapes_become_one_group(shapes, concats, splits, slices):
    """One chain of operators; gradients are joined by at most 32, and the forward pass gets runs of equal shapes."""
    model, bindings = momentum(len(shapes), shapes)
    before = model.clone()
    result = grouped(model, bindings)
    assert (result.count, len(result.stacks)) == (1, 2), "parameters and velocities"
    operators = kinds(model)
    assert all(operators[kind] == number for kind, number in (("Sub", 1), ("Mul", 2), ("Add", 1)))
    assert (operators["Concat"], operators["Split"], operators["Slice"]) == (concats, splits, slices)
    assert not any(len(n.inputs) > 32 or len(n.outputs) > 32 for n in model.graph)
    check_numbers(before, model, result, bindings)


def test_low_gradients_and_low_copies_are_cast_together():
    """Gradients cast from 16 bits are joined before, and what the forward pass casts comes from one cast."""
    lines = ["l{i} = Cast<to=10>(g{i})", "c{i} = Cast<to=10>(w{i})", "r{i} = Neg(c{i})"]
    lines += ["f{i} = Cast<to=1>(l{i})", "d{i} = Mul(rate, f{i})", "n{i} = Sub(w{i}, d{i})"]
    updates = [("float[{s}]", "w{i}", "n{i}"), ("float16[{s}]", "r{i}", "r{i}")]
    model, bindings = step(3, lines, ["float[{s}] x{i}", "float[{s}] w{i}"], updates, ["4", "2,3", "4"], "float rate")
    for node in model.graph:
        if str(node.outputs[0].name)[0] in "lcr":
            node.metadata_props[ROLE_KEY] = "backward"
    before = model.clone()
    result = grouped(model, bindings)
    assert [(stack.members, stack.dtype) for stack in result.stacks] == [(("w0", "w2", "w1"), ir.DataType.FLOAT)]
    assert kinds(model)["Cast"] == 3 + 2, "of the gradients to 16 bits; of all of them back, and of all parameters"
    (joined,) = (node.outputs[0] for node in model.graph if node.op_type == "Concat")
    assert joined.dtype == ir.DataType.FLOAT16
    check_numbers(before, model, result, bindings)


@pytest.mark.parametrize("read", [(0, 1, 2), (1, 2), (0, 1), (2,)], ids=str)
def test_few_low_copies_are_cast_without_the_rest(read: tuple[int, ...]) -> None:
    """Vectors that stay float32 are a small part of the masters that they are rows of; some may have no low reader."""
    lines = ["d{i} = Mul(rate, g{i})", "n{i} = Sub(w{i}, d{i})", "c{i} = Cast<to=10>(w{i})", "r{i} = Neg(c{i})"]
    updates = [("float[{s}]", "w{i}", "n{i}"), ("float16[{s}]", "r{i}", "r{i}")]
    model, bindings = step(
        4, lines, ["float[{s}] x{i}", "float[{s}] w{i}"], updates, ["4"] * 3 + ["50,4"], "float rate"
    )
    for node in list(model.graph):
        if str(node.outputs[0].name)[0] in "cr":
            node.metadata_props[ROLE_KEY] = "backward"
    for number in set(range(4)).difference(read):
        result = next(value for value in model.graph.outputs if value.name == f"r{number}")
        model.graph.outputs.remove(result)
        model.graph.remove([result.producer().inputs[0].producer(), result.producer()][::-1], safe=True)
        del bindings[f"r{number}"]
    before = model.clone()
    result = grouped(model, {name: new for name, new in bindings.items() if name.startswith("w")})
    casts = [node for node in model.graph if node.op_type == "Cast"]
    assert [int(np.prod(node.outputs[0].shape)) for node in casts] == [12]
    check_numbers(before, model, result, bindings)


def test_the_joined_gradients_are_named():
    model, bindings = momentum(3)
    grouped(model, bindings)
    assert list(group_members(model).values()) == [("g0", "g1", "g2")]


def test_a_fetched_member_comes_out_under_its_name():
    model, bindings = momentum(4)
    result = grouped(model, bindings, fetched=["u2"], worth=EQUAL)
    assert [v.name for v in model.graph.outputs] == [
        "n0",
        "n1",
        "u2",
        "n2",
        "n3",
        result.updates[result.stacks[0].name],
    ]
    assert kinds(model)["Slice"] == 1


def test_chains_that_differ_are_apart():
    """Another constant, another operator or another shape makes another chain."""
    lines = ["u{i} = Mul(v{i}, g{i})"]
    inputs, updates = ["float[4] x{i}", "float[4] v{i}"], [("float[4]", "v{i}", "u{i}")]
    model, bindings = step(6, lines, inputs, updates)
    for node in list(model.graph):
        if node.outputs[0].name in ("u1", "u3", "u5"):
            node.op_type = "Sub"
    result = grouped(model, bindings)
    assert sorted(stack.members for stack in result.stacks) == [("v0", "v2", "v4"), ("v1", "v3", "v5")]


@pytest.mark.parametrize(
    ("size", "worth", "pays"),
    [
        ("10,100", CUDA_WORTH, True),
        ("1000,4000", CUDA_WORTH, False),
        ("8,8", CPU_WORTH, True),
        ("100,1000", CPU_WORTH, False),
    ],
)
def test_a_group_is_made_where_it_pays(size, worth, pays):
    model, bindings = momentum(2, size)
    assert grouped(model, bindings, worth=worth).modified is pays


def test_chains_that_depend_on_each_other_stay():
    """The second member's gradient is made of the first member's new value: no node can stand for both."""
    lines = ["u{i} = Mul(v{i}, g{i})"]
    inputs, updates = ["float[4] x{i}", "float[4] v{i}"], [("float[4]", "v{i}", "u{i}")]
    assert grouped(*step(3, lines, inputs, updates)).modified
    model, bindings = step(3, lines, inputs, updates)
    first, second, _ = (node for node in model.graph if node.op_type == "Mul")
    between = ir.node("CumSum", [first.outputs[0], ir.val("axis", const_value=ir.tensor(np.int64(0)))])
    between.outputs[0].type, between.outputs[0].shape = first.outputs[0].type, first.outputs[0].shape
    between.outputs[0].name = "between"
    between.metadata_props[ROLE_KEY] = "optimize"
    model.graph.register_initializer(between.inputs[1])
    model.graph.insert_before(second, between)
    second.replace_input_with(1, between.outputs[0])
    assert not grouped(model, bindings).modified


def test_a_sum_over_members_is_a_sum_over_the_matrix():
    """The check for infinity: one reduction a group, whatever its members."""
    lines = ["z{i} = Mul(g{i}, half)", "s{i} = ReduceSum<keepdims=0>(z{i})"]
    inputs = ["float[2,2] x{i}"]
    model, _ = step(5, lines, inputs, [("float", "q{i}", "s{i}")])
    outputs = list(model.graph.outputs)
    model.graph.outputs.clear()
    total = ir.node("Sum", outputs)
    total.outputs[0].name, total.outputs[0].type, total.outputs[0].shape = "t", outputs[0].type, ir.Shape([])
    total.metadata_props[ROLE_KEY] = "optimize"
    model.graph.append(total)
    model.graph.outputs.append(total.outputs[0])
    assert grouped(model, {"q": "t"}).modified
    assert kinds(model) == {"Relu": 5, "Concat": 1, "Reshape": 1, "Mul": 1, "ReduceSum": 1, "Sum": 1}
    feeds = {f"x{i}": np.full((2, 2), i, np.float32) for i in range(5)}
    assert run(model, feeds) == {"t": 20.0}


def test_scalars_that_differ_are_a_column():
    """Each member's own rate: computed for all members at once, and repeated where members share one."""
    lines = ["p{i} = Mul(b{i}, half)", "r{i} = Sub(half, b{i})", "c{i} = Mul(g{i}, r{i})", "u{i} = Add(v{i}, c{i})"]
    inputs = ["float[3] x{i}", "float[3] v{i}", "float b{i}"]
    updates = [("float[3]", "v{i}", "u{i}"), ("float", "b{i}", "p{i}")]
    model, bindings = step(3, lines, inputs, updates)
    before = model.clone()
    result = grouped(model, bindings)
    assert sorted((s.members, s.shapes[0]) for s in result.stacks) == [
        (("b0", "b1", "b2"), ()),
        (("v0", "v1", "v2"), (3,)),
    ]
    assert kinds(model) == {"Relu": 3, "Concat": 1, "Reshape": 1, "Mul": 2, "Sub": 1, "Add": 1}
    feeds = {f"{n}{i}": np.full(() if n == "b" else 3, i + 1, np.float32) for n in "xvb" for i in range(3)}
    expected = run(before, feeds)
    rows = {s.name: np.stack([feeds.pop(name).reshape(-1) for name in s.members]) for s in result.stacks}
    outputs = run(model, feeds | rows)
    for stack in result.stacks:
        for name, row in zip(stack.members, outputs[result.updates[stack.name]], strict=True):
            np.testing.assert_array_equal(row, expected[bindings[name]].reshape(-1))


def test_scalars_of_what_is_not_grouped_come_out_of_one_split():
    """Tensors that are too large for a group take their own rates as parts of a column, without further views."""
    lines = ["p{i} = Mul(b{i}, half)", "r{i} = Sub(half, b{i})", "c{i} = Mul(g{i}, r{i})", "u{i} = Add(v{i}, c{i})"]
    inputs = ["float[3] x{i}", "float[3] v{i}", "float b{i}"]
    updates = [("float[3]", "v{i}", "u{i}"), ("float", "b{i}", "p{i}")]
    model, bindings = step(3, lines, inputs, updates)
    before = model.clone()
    result = grouped(model, bindings, worth=dataclasses.replace(FREE, most_elements=3))
    assert [stack.members for stack in result.stacks] == [("b0", "b1", "b2")]
    assert kinds(model) == {"Relu": 3, "Mul": 4, "Sub": 1, "Reshape": 1, "Split": 1, "Add": 3}
    feeds = {f"{n}{i}": np.full(() if n == "b" else 3, i + 1, np.float32) for n in "xvb" for i in range(3)}
    expected = run(before, feeds)
    stack = result.stacks[0]
    outputs = run(model, feeds | {stack.name: np.stack([feeds.pop(name).reshape(-1) for name in stack.members])})
    for index in range(3):
        np.testing.assert_array_equal(outputs[f"u{index}"], expected[f"u{index}"])
