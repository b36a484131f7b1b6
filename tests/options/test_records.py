"""The records of options: what their fields declare, and what the command line makes of them."""

import dataclasses
import pickle

import pytest

from amp_transpiler.cli.options import parse
from amp_transpiler.errors import OptionError
from amp_transpiler.options.command import CommandOptions
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import Option, declarations, option
from amp_transpiler.options.reading import number
from amp_transpiler.options.table import OPTIONS, RECORDED


def at_least_one(value):
    if value < 1:
        raise OptionError(f"factor is {value!r}")
    return float(value)


@dataclasses.dataclass(frozen=True)
class Sample:
    factor: float = option(2.0, group="decide", flags=("-f", "--factor"), metavar="X", read=number, check=at_least_one)
    strict: bool = option(False, group="check", flags=("--strict",))
    fast: bool = option(True, group="check", name="no_fast", flags=("--no-fast",), for_copies=True)
    kind: str = option("plain", group="decide", flags=("--kind",), metavar="K", values={"plain": "one", "odd": "two"})
    pairs: tuple[str, ...] = option(
        (),
        group="report",
        name="left",
        flags=("--left",),
        metavar="L",
        repeated=True,
        further=(Option(group="report", name="right", flags=("--right",), metavar="R", repeated=True),),
        collect=lambda left, right: (*left, *right),
    )


NOTHING = {"factor": None, "strict": False, "no_fast": False, "kind": None, "left": [], "right": []}


@pytest.mark.parametrize(
    ("raw", "changed"),
    [
        ({}, {}),
        ({"factor": 0.0}, {"factor": 0.0}),
        ({"strict": True, "no_fast": True}, {"strict": True, "fast": False}),
        ({"right": ["a"]}, {"pairs": ("a",)}),
        ({"left": ["b"], "right": ["a"]}, {"pairs": ("b", "a")}),
    ],
)
def test_a_declaration_makes_its_value_of_what_was_read(raw, changed):
    values = {field: declared.value_of(NOTHING | raw) for field, declared in declarations(Sample).items()}
    assert Sample(**values) == dataclasses.replace(Sample(), **changed)


def test_what_an_option_does_not_say_its_field_does():
    shown = [shown for declared in declarations(Sample).values() for shown in declared.options]
    assert [row.name for row in shown] == ["factor", "strict", "no_fast", "kind", "left", "right"]
    assert [row.default for row in shown] == [None, None, None, "plain", None, None]
    assert [row.is_switch for row in shown] == [False, True, True, False, False, False]
    assert [row.is_lost_on_copies for row in shown] == [True, True, False, True, False, False]


def test_a_check_runs_on_the_whole_record():
    checked = dataclasses.replace(ConversionOptions(), headroom=8, dims={"n": 2}).checked()
    assert (checked.headroom, checked.dims, checked.device) == (8.0, {"n": 2}, "H100")
    with pytest.raises(OptionError, match="headroom is 0: expected a number of at least 1"):
        dataclasses.replace(ConversionOptions(), headroom=0).checked()


def test_what_a_recipe_holds_is_no_data_and_no_device():
    assert {"level", "tolerance", "amp_lists", "prefer"} <= set(RECORDED)
    assert not {"inputs", "metric", "device", "dims", "recipe", "verify", "progress"} & set(RECORDED)


@pytest.mark.parametrize("record", [ConversionOptions, CommandOptions])
def test_every_field_of_a_record_is_declared(record):
    assert set(declarations(record)) == {field.name for field in dataclasses.fields(record)}


def test_every_option_of_the_command_is_in_the_report_as_it_was_written():
    of_the_command = {option.name for option in OPTIONS if option.flags}
    assert set(parse(["m.onnx"]).as_written) == of_the_command


def test_options_are_the_same_in_another_process():
    """A default that stands for more than its text is recognised there."""
    options = parse(["m.onnx", "--preset", "mp1"])
    sent = pickle.loads(pickle.dumps(options))
    assert sent == options
    assert sent.low_dtype == "bfloat16"
    assert "dtype" not in sent.conversion.changed()


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ([], {}),
        (["--level", "auto", "--io-types", "keep", "--headroom", "4"], {}),
        (["--io-types", "low"], {"keep_io_types": False}),
        (["--dtype", "float16"], {"dtype": "float16"}),
        (["--init-max", "0"], {"init_max": 0.0}),
        (["--dim", "n=2", "--dim", "m=3"], {"dims": {"n": 2, "m": 3}}),
        (["--guard", "a", "--guard", "b"], {"guard": ("a", "b")}),
        (["--no-verify", "--no-cache"], {"verify": False, "cache": False}),
        (["--master-weights", "--promote"], {"master_weights": True, "use_promote": True}),
        (["--report", "r.html"], {"frontier": True}),
        (["--report", "r.html", "--level", "O2"], {"level": "O2"}),
    ],
)
def test_an_option_that_is_written_changes_its_field(arguments, changed):
    assert parse(["m.onnx", *arguments]).conversion.changed() == changed


def test_the_lists_of_operators_are_one_field():
    lists = parse(["m.onnx", "--white", "A", "--black-var", "b", "--white", "C"]).conversion.amp_lists
    assert (lists.custom_white_list, lists.custom_black_list, lists.black_varnames) == ({"A", "C"}, set(), {"b"})


def test_the_flags_that_a_copy_would_ignore_are_named():
    with pytest.raises(OptionError, match="so --black, --dim, --save-recipe would have no effect"):
        parse(["m.onnx", "--level", "O0", "--dim", "n=2", "--black", "A", "--save-recipe", "r", "--prefer", "balance"])
