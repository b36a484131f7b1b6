"""The manager: what it checks after a pass, what it leaves alone, and how errors come out."""

import inspect
import pathlib

import onnx_ir as ir
import pytest

from amp_transpiler import conversion
from amp_transpiler.errors import ModelError, VerificationError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.match import parse_form
from amp_transpiler.graph.types import propagate_types, set_dtype
from amp_transpiler.passes import guard_fusions, manager, spell_defaults, spell_norms
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.passes.inline_functions import InlineFunctions
from amp_transpiler.passes.manager import Pass, PassFor, PassManager, PassResult, run_pass
from amp_transpiler.precision.assignment import Assignment, Decision
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import parse

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"


def model():
    work = ir.from_proto(parse("(float[2] x, float[2] z) => (float[2] y) { [a] h = Relu (x) [b] y = Add (h, z) }"))
    propagate_types(work)
    return work


class Edit(Pass[PassResult]):
    """Runs a function; says it modified the model, or not."""

    def __init__(self, edit, *, modified=True, note=""):
        self._edit = edit
        self._modified = modified
        self._note = note

    def call(self, model):
        self._edit(model)
        return PassResult(model, modified=self._modified, count=int(self._modified), notes=(self._note,))


def narrow_input(model):
    set_dtype(model.graph.inputs[1], ir.DataType.FLOAT16)


def narrow_both(model):
    for value in model.graph.inputs:
        set_dtype(value, ir.DataType.FLOAT16)


def nothing(_):
    pass


def test_the_pass_that_leaves_a_model_ill_typed_is_named():
    with pytest.raises(VerificationError, match=r"^after Edit: Add 'b': input 1 .*float16"):
        run_pass(Edit(narrow_input), model())


def test_a_pass_that_says_it_changed_nothing_is_not_checked():
    assert not run_pass(Edit(narrow_input, modified=False), model()).modified


def test_values_in_between_are_typed_anew():
    changed = model()
    set_dtype(changed.graph.outputs[0], ir.DataType.FLOAT16)
    run_pass(Edit(narrow_both), changed)
    assert [value.dtype for node in changed.graph for value in node.outputs] == [ir.DataType.FLOAT16] * 2


def test_typing_must_not_change_an_output():
    with pytest.raises(VerificationError, match=r"after Edit: output 'y' is declared tensor\(float\)"):
        run_pass(Edit(narrow_both), model())


def test_it_checks_once_for_each_pass_that_modified(monkeypatch):
    checked = []
    monkeypatch.setattr(manager, "verify", lambda _, after, examples: checked.append((after, examples)))
    passes = [Edit(nothing, modified=modified) for modified in (False, True, False, True)]
    PassManager(passes)(model())
    assert [after for after, _ in checked] == ["Edit", "Edit"]
    assert all(examples for _, examples in checked)  # typing has walked over the nodes, and shows some of each kind
    PassManager(passes, typed=False)(model())
    assert len(checked) == 2


def test_results_and_notes_add_up():
    result = PassManager([Edit(nothing, modified=False, note="first"), Edit(nothing, note="second")])(model())
    assert (result.modified, result.count, result.notes) == (True, 1, ("first", "second"))


def test_errors_come_out_as_they_are():
    def fail(_):
        raise ModelError("the model is wrong")

    with pytest.raises(ModelError, match=r"^the model is wrong\n"):
        PassManager([Edit(fail)])(model())


def test_a_result_can_be_passed_on():
    first = Edit(nothing)(model())
    assert Edit(nothing)(first).model is first.model


def test_an_assignment_about_another_model_is_refused():
    other = model()
    assignment = Assignment(FLOAT16, decisions={node: Decision("high", "for the test") for node in other.graph})
    with pytest.raises(ir.passes.PreconditionError, match="another model: 'a' is not of this one"):
        ApplyAssignment(assignment)(model())


def test_a_broken_promise_is_an_error(monkeypatch):
    called = ir.from_proto(
        parse(
            "(float[2] x) => (float[2] y) { y = local.f (x) }",
            '<domain: "local", opset_import: ["": 18]> f (a) => (b) { b = Neg (a) }',
            imports=', "local": 1',
        )
    )
    monkeypatch.setattr(InlineFunctions, "call", lambda _, model: PassResult(model, modified=False))
    with pytest.raises(ir.passes.PostconditionError, match="functions are left"):
        InlineFunctions()(called)


def test_a_pass_is_left_out_where_its_operators_are_missing():
    def rename(edited):
        next(iter(edited.graph)).op_type = "Neg"

    ran = []
    passes = [
        PassFor({"Exp"}, lambda: ran.append("Exp")),  # not even made
        PassFor({"Relu"}, lambda: Edit(rename)),
        PassFor({"Tanh", "Neg"}, lambda: Edit(lambda _: ran.append("Neg"))),
    ]
    assert PassManager(passes)(model()).count == 2
    assert ran == ["Neg"]  # what an edit brought counts


def entries_of_a_conversion():
    """Every `PassFor` of one: all passes for some operators are among them, and edit the most that they ever do."""
    recorded = []

    class Recorder(PassManager):
        def __init__(self, passes, *, typed=True):
            super().__init__(passes, typed=typed)
            recorded.extend(entry for entry in self.passes if isinstance(entry, PassFor))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "PassManager", Recorder)
        policy = choose_policy(Request(level="O2", dtype="bfloat16", ort="1.23"))
        conversion.prepare_and_convert(load(MODELS / "bert_1layer.onnx"), policy)
    return recorded


ENTRIES = entries_of_a_conversion()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.make().name)
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_pass_edits_nothing_without_its_operators(entry, path):
    renamed = ir.load(path)
    for node in renamed.graph:
        if node.op_type in entry.operators:
            node.op_type, node.domain = f"{node.op_type}Of", "my.domain"
    assert not entry.make().call(renamed).modified


def test_every_pass_for_some_operators_is_among_them():
    assert len(ENTRIES) == inspect.getsource(conversion).count("PassFor({")


def test_the_operators_of_tables_are_those_that_the_lists_name():
    named = {entry.make().name: entry.operators for entry in ENTRIES}
    assert named["SpellDefaults"] == set(spell_defaults._MISREAD)
    assert named["SpellNorms"] == {parse_form(row.pattern).op_type for row in spell_norms._ROWS}
    assert named["GuardFusions"] == {parse_form(guard_fusions._EVERY.pattern).op_type}
