"""Recipes: what they hold, what is replayed, and what they say about a model that they do not fit."""

from __future__ import annotations

import tomllib

import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import main
from amp_transpiler.errors import InputError
from amp_transpiler.options.table import RECORDED
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.report.recipe import Recipe, as_settings

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 8] x, float[8, 8] w) => (float[2, 8] y)
{
    [first] a = MatMul(x, w)
    [second] b = Relu(a)
    [third] c = MatMul(b, w)
    [last] y = Softmax(c)
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def precisions(report: amp.Report) -> dict[str, str]:
    return {row.name: row.precision for row in report.decisions}


def test_a_recipe_replays_options_and_decisions(file, tmp_path):
    recorded = amp.transpile(file, disable_amp=["first"], dtype="bfloat16", tolerance="4%", prefer="size")
    recorded.save_recipe(tmp_path / "r.toml")
    again = amp.transpile(file, recipe=tmp_path / "r.toml", prefer="size")
    assert precisions(again) == precisions(recorded)
    assert again.dtype == "bfloat16"
    assert again.settings == recorded.settings == {"disable_amp": ["first"], "dtype": "bfloat16", "tolerance": "4%"}
    assert again.warnings == recorded.warnings


def test_the_decisions_of_a_recipe_win_over_the_level(file, tmp_path):
    recorded = amp.transpile(file, verify=False, prefer="size")
    recorded.save_recipe(tmp_path / "r.toml")
    text = (tmp_path / "r.toml").read_text()
    table = tomllib.loads(text)["nodes"]
    assert table["third"]["precision"] == "low"
    before, after = text.split("[nodes.third]")
    (tmp_path / "r.toml").write_text(before + "[nodes.third]" + after.replace('"low"', '"high"', 1))
    again = amp.transpile(file, recipe=tmp_path / "r.toml", verify=False, prefer="size")
    assert precisions(again) == {**precisions(recorded), "third": "high"}
    [row] = [row for row in again.decisions if row.name == "third"]
    assert row.reason.startswith("as in the recipe: ")


def test_an_option_that_is_given_wins_over_the_recipe(file, tmp_path):
    amp.transpile(file, dtype="bfloat16", target="any", verify=False, prefer="size").save_recipe(tmp_path / "r.toml")
    again = amp.transpile(file, recipe=tmp_path / "r.toml", dtype="float16", verify=False, prefer="size")
    assert (again.dtype, again.target) == ("float16", "any")


def test_the_next_export_is_converted_and_told_apart(file, tmp_path):
    amp.transpile(file, verify=False, prefer="size").save_recipe(tmp_path / "r.toml")
    other = TEXT.replace("[second] b = Relu(a)", "[second] b = Tanh(a)").replace("[last] y = S", "[scores] y = S")
    onnx.save(onnx.parser.parse_model(other), tmp_path / "next.onnx")
    again = amp.transpile(tmp_path / "next.onnx", recipe=tmp_path / "r.toml", prefer="size")
    assert again.warnings == (
        f"recipe: the recipe was made from another file ({file})",
        "recipe: 1 node only in the recipe: 'last'",
        "recipe: 1 node only in the model, decided anew: 'scores'",
        "recipe: 1 node with another operator than in the recipe: 'second'",
    )
    assert (
        precisions(again)["scores"]
        == precisions(amp.transpile(tmp_path / "next.onnx", verify=False, prefer="size"))["scores"]
    )


def test_a_precision_that_the_target_does_not_have_is_told(file, tmp_path):
    amp.transpile(file, dtype="bfloat16", verify=False, prefer="size").save_recipe(tmp_path / "r.toml")
    again = amp.transpile(file, recipe=tmp_path / "r.toml", target="cpu", verify=False)
    assert any("without the recipe's precision" in warning for warning in again.warnings)
    assert set(precisions(again).values()) == {"float32"}


def test_the_command_writes_and_replays(file, tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    assert main([str(file), "-q", "--prefer", "size", "--black", "Softmax", "--save-recipe", str(recipe)]) == 0
    assert tomllib.loads(recipe.read_text())["options"] == {"amp_lists": {"black": ["Softmax"]}}
    assert main([str(file), "-q", "--recipe", str(recipe), "-o", str(tmp_path / "again.onnx")]) == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "net.fp16.onnx").read_bytes()
    assert all("predicted slower" in line for line in capsys.readouterr().err.splitlines())


def test_one_recipe_is_of_one_model(file, tmp_path, capsys):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "other.onnx")
    status = main([str(file), str(tmp_path / "other.onnx"), "--save-recipe", str(tmp_path / "r.toml")])
    assert status == 2
    assert "a recipe is of one model" in capsys.readouterr().err


def test_lists_and_patterns_go_through_toml():
    options = {
        "amp_lists": UserLists(frozenset({"Conv"}), frozenset({"Exp", "Log"})),
        "keep_io_types": {"past.*": "low"},
        "tolerance": 0.01,
        "guard": ("a", "b"),
        "inputs": object(),
    }
    settings = as_settings(options, RECORDED)
    assert settings == {
        "amp_lists": {"white": ["Conv"], "black": ["Exp", "Log"]},
        "keep_io_types": {"past.*": "low"},
        "tolerance": 0.01,
        "guard": ["a", "b"],
    }
    recipe = Recipe(tomllib.loads(Recipe(settings, {}).text())["options"], {})
    lists = recipe.arguments()["amp_lists"]
    assert (lists.custom_white_list, lists.custom_black_list) == ({"Conv"}, {"Exp", "Log"})


def test_a_type_of_numpy_is_held_by_its_name():
    assert as_settings({"dtype": np.float16}, RECORDED) == {"dtype": "float16"}


# text of the file -> words of the error
WRONG = {
    "no TOML": ("format = = 1", "cannot be read"),
    "another format": ("format = 7", "its format is 7, expected 1"),
    "no format": ("", "its format is none, expected 1"),
    "an unknown option": ("format = 1\n[options]\nlevle = 'O1'", "unknown option 'levle'"),
    "no table": ("format = 1\noptions = 3", "'options' is 3, expected a table"),
    "no precision": ("format = 1\n[nodes]\na = { op = 'Relu' }", "node 'a' is"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_wrong_files_are_refused(file, tmp_path, text, words):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        amp.transpile(file, recipe=tmp_path / "r.toml", prefer="size")


def test_a_missing_file_is_told(file, tmp_path):
    with pytest.raises(InputError, match=r"recipe .*none\.toml: cannot be read"):
        amp.transpile(file, recipe=tmp_path / "none.toml", prefer="size")
