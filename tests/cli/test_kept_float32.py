"""A model that gains nothing: what the command says of it, what the file is called, and how a recipe replays it."""

import json

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.cli.command import main
from amp_transpiler.options.table import RECORDED
from amp_transpiler.report.recipe import Recipe
from tests.support import array, parse

SMALL = parse("(float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", w=array(4, 4))
LARGE = parse("(float[N,1024] x) => (float[N,1024] y) { y = MatMul (x, w) }", w=array(1024, 1024))
GAINS = ["--dim", "N=65536"]  # rows, for the large one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(SMALL, "small.onnx")
    onnx.save(LARGE, "large.onnx")
    return tmp_path


def low_constants(path):
    return {tensor.data_type for tensor in onnx.load(path).graph.initializer} == {onnx.TensorProto.FLOAT16}


def call(*arguments):
    return main([*arguments, "--no-verify"])


def test_it_says_so_first_and_the_file_is_not_named_float16(folder, capsys):
    assert call("small.onnx", "--json", "r.json") == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("kept float32: float16 is predicted no faster at these shapes on H100: ")
    assert "small.onnx -> small.fp32.onnx" in others
    assert sorted(path.name for path in folder.glob("small.*")) == ["small.fp32.onnx", "small.onnx"]
    assert not low_constants("small.fp32.onnx")
    record = json.loads((folder / "r.json").read_text())
    assert (record["kept_float32"], record["slower"], record["destination"]) == (True, False, "small.fp32.onnx")


def test_a_name_that_was_given_is_kept(folder, capsys):
    assert call("small.onnx", "-o", "given.onnx") == 0
    assert "small.onnx -> given.onnx" in capsys.readouterr().out
    assert not low_constants("given.onnx")
    assert not list(folder.glob("*.fp*.onnx"))


def test_in_python_it_is_written_where_it_was_asked(folder):
    report = amp.transpile("small.onnx", "small.fp16.onnx", verify=False)
    assert report.kept_float32
    assert report.destination == "small.fp16.onnx"


@pytest.mark.parametrize("place", [[], ["-o", "out/"]])
def test_a_folder_has_a_row_of_it(folder, place, capsys):
    assert call("small.onnx", "large.onnx", *GAINS, *place) == 0
    table = capsys.readouterr().out.partition("model ")[2]
    rows = [line for line in table.splitlines() if line.startswith(("small.onnx ", "large.onnx "))]
    assert ["kept float32" in row for row in rows] == [True, False]
    written = folder / ("out" if place else ".")
    assert (written / "small.fp32.onnx").exists()
    assert not (written / "small.fp16.onnx").exists()
    assert low_constants(written / "large.fp16.onnx")


def test_an_unchanged_one_is_skipped(folder, capsys, monkeypatch):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(folder / "cache"))
    assert call("small.onnx", "--skip-unchanged") == 0
    capsys.readouterr()
    assert call("small.onnx", "--skip-unchanged") == 0
    assert "skipped, unchanged" in capsys.readouterr().out
    (folder / "small.fp32.onnx").unlink()
    assert call("small.onnx", "--skip-unchanged") == 0
    assert (folder / "small.fp32.onnx").exists()


@pytest.mark.usefixtures("folder")
def test_no_source_is_replaced_by_it(capsys):
    onnx.save(LARGE, "small.fp32.onnx")
    assert call("small.onnx", "small.fp32.onnx") == 2
    assert "would replace small.fp32.onnx" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["small.onnx"], "note: small.onnx: kept float32: "),
        (["small.onnx", "--prefer", "time"], "note: small.onnx: kept float32: "),
        (["small.onnx", "--prefer", "size"], "warning: small.onnx: predicted slower than float32"),
        (["small.onnx", "--prefer", "low"], "warning: small.onnx: predicted slower than float32"),
        (["large.onnx", *GAINS], ""),
        (["small.onnx", "--target", "cpu"], ""),
    ],
)
def test_quietly(arguments, said, capsys):
    assert call(*arguments, "-q") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.removeprefix("amp-transpile: ").startswith(said)
    assert bool(captured.err) is bool(said)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "slower"), [([], False), (["--prefer", "size"], True), (["--prefer", "time"], False)]
)
def test_slower_is_in_json(arguments, slower, capsys):
    assert call("small.onnx", *arguments, "--json", "-") == 0
    (record,) = [json.loads(capsys.readouterr().out)]
    record = record[0] if isinstance(record, list) else record
    assert record["slower"] is slower
    before, after = record["predicted_ms"]
    assert (after > before) is slower


def test_slower_is_in_check(folder, capsys):
    """A 16-bit model that is slower than the float32 one beside it is found; one that was kept float32 is none."""
    assert call("small.onnx") == 0
    capsys.readouterr()
    main(["--check", str(folder)])
    assert "[slower]" not in capsys.readouterr().out
    assert call("small.onnx", "--prefer", "size") == 0
    capsys.readouterr()
    main(["--check", str(folder)])
    assert "[slower]" in capsys.readouterr().out


# ---- recipes ----


@pytest.mark.usefixtures("folder")
def test_a_recipe_of_former_versions_replays_as_it_was():
    recorded = amp.transpile("small.onnx", "made.onnx", verify=False, prefer="low")
    recorded.save_recipe("r.toml")
    assert "prefer" not in Recipe.read("r.toml", RECORDED).options, "as former versions wrote it"
    again = amp.transpile("small.onnx", "again.onnx", verify=False, recipe="r.toml")
    assert again.low_nodes == recorded.low_nodes == 1
    assert (np.fromfile("made.onnx", np.uint8) == np.fromfile("again.onnx", np.uint8)).all()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("prefer", ["balance", "time"])
def test_a_recipe_holds_the_preference(prefer):
    replayed = amp.transpile("small.onnx", "made.onnx", verify=False, prefer=prefer)
    replayed.save_recipe("r.toml")
    assert Recipe.read("r.toml", RECORDED).options == {"prefer": prefer}
    again = amp.transpile("small.onnx", "again.onnx", verify=False, recipe="r.toml")
    assert again.kept_float32
    assert (np.fromfile("made.onnx", np.uint8) == np.fromfile("again.onnx", np.uint8)).all()


@pytest.mark.parametrize("options", [{"level": "O2"}, {"level": "O1"}, {"preset": "mp1"}, {"policy": "torch"}])
def test_a_recipe_of_another_level_needs_no_preference(options, tmp_path):
    replayed = amp.transpile(SMALL, verify=False, **options)
    replayed.save_recipe(tmp_path / "r.toml")
    again = amp.transpile(SMALL, verify=False, recipe=tmp_path / "r.toml")
    assert [row.precision for row in again.decisions] == [row.precision for row in replayed.decisions]


# ---- what is written ----


def with_function():
    """A model whose product is in a function of its own, which a conversion inlines."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "own": 1]>
        g (float[N,4] x, float[4,4] w) => (float[N,4] y) { y = own.Product (x, w) }
        <domain: "own", opset_import: ["": 21]> Product (a, b) => (c) { c = MatMul (a, b) }"""
    )
    onnx.checker.check_model(model)
    return model


def with_words():
    model = onnx.ModelProto.FromString(SMALL.SerializeToString())
    model.doc_string, model.producer_name = "what it is", "somebody"
    model.metadata_props.add(key="labels", value="cat, dog")
    model.graph.node[0].doc_string = "a product"
    return model


def with_constant_node():
    return parse(
        "(float[N,2] x) => (float[N,2] y) "
        "{ w = Constant <value = float[2,2] {1.0, 2.0, 3.0, 4.0}> () h = Identity (x) y = MatMul (h, w) }"
    )


AS_GIVEN = {
    "a product": lambda: SMALL,
    "an older opset, which would be raised": lambda: parse(
        "(float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", opset=11, w=array(4, 4)
    ),
    "an older IR version": lambda: parse(
        "(float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", ir_version=7, w=array(4, 4)
    ),
    "a function": with_function,
    "documentation and metadata": with_words,
    "a constant node and an identity": with_constant_node,
    "nodes in a body": lambda: parse(
        "(float[N,4] x, bool c) => (float[N,4] y) { y = If (c) "
        "<then_branch = a () => (float[N,4] p) { p = MatMul (x, w) }, "
        "else_branch = b () => (float[N,4] q) { q = Neg (x) }> }",
        w=array(4, 4),
    ),
}


@pytest.mark.parametrize("name", AS_GIVEN)
@pytest.mark.parametrize("checked", [False, True])
def test_the_file_is_the_source(name, checked, tmp_path):
    onnx.save(AS_GIVEN[name](), tmp_path / "m.onnx")
    report = amp.transpile(tmp_path / "m.onnx", tmp_path / "r.onnx", verify=checked, cache=False)
    assert report.kept_float32
    assert (tmp_path / "r.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert report.opset[0] == report.opset[1]
    assert report.file_bytes[0] == report.file_bytes[1] == (tmp_path / "r.onnx").stat().st_size
    assert report.weight_bytes[0] == report.weight_bytes[1]


@pytest.mark.parametrize(
    ("options", "opset"), [({"opset": 18}, 18), ({"ort": "1.17"}, 20), ({"opset": 17, "prefer": "time"}, 17)]
)
def test_another_opset_is_written(options, opset, tmp_path):
    model = parse("(float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", opset=21, w=array(4, 4))
    onnx.save(model, tmp_path / "m.onnx")
    report = amp.transpile(tmp_path / "m.onnx", tmp_path / "r.onnx", verify=False, **options)
    assert report.kept_float32
    assert onnx.load(tmp_path / "r.onnx").opset_import[0].version == report.opset[1] == opset


def test_weights_outside_get_a_file_of_their_own(tmp_path):
    """The result lives on if the source and its weights are deleted."""
    onnx.save(
        parse("(float[N,64] x) => (float[N,64] y) { y = MatMul (x, w) }", w=array(64, 64)),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    report = amp.transpile(tmp_path / "m.onnx", tmp_path / "r.onnx", verify=False)
    assert report.kept_float32
    (tmp_path / "m.onnx").unlink()
    (tmp_path / "m.data").unlink()
    (node,) = onnx.load(tmp_path / "r.onnx").graph.node
    assert node.op_type == "MatMul"
    assert not node.name, "the source's node has none"
    assert len(list(tmp_path.glob("r.onnx.*.data"))) == 1


def test_a_source_in_memory_is_written_as_it_is(tmp_path):
    report = amp.transpile(with_function(), tmp_path / "r.onnx", verify=False)
    assert report.kept_float32
    assert [function.name for function in onnx.load(tmp_path / "r.onnx").functions] == ["Product"]


def test_outputs_that_were_chosen_are_those_of_the_file(tmp_path):
    model = parse("(float[N,4] x) => (float[N,4] y) { h = MatMul (x, w) y = Neg (h) }", w=array(4, 4))
    onnx.save(model, tmp_path / "m.onnx")
    program = amp.load(tmp_path / "m.onnx")
    program.outputs = ["h"]
    assert amp.transpile(program, tmp_path / "r.onnx", verify=False).kept_float32
    assert [value.name for value in onnx.load(tmp_path / "r.onnx").graph.output] == ["h"]


def test_no_cast_is_removed_from_a_copy_of_the_source(folder):
    text = "(float[N,4] x) => (float[N,4] y) { c = Cast <to = 1> (x) y = MatMul (c, w) }"
    onnx.save(parse(text, w=array(4, 4)), "cast.onnx")
    report = amp.transpile("cast.onnx", "copy.onnx", verify=False)
    assert report.kept_float32
    assert (report.casts, report.casts_removed) == (0, 0)
    assert (folder / "copy.onnx").read_bytes() == (folder / "cast.onnx").read_bytes()
