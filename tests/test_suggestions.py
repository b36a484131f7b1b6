"""Messages name functions, classes and options that exist."""

import ast
import inspect
import pathlib
import re

import pytest

import amp_transpiler as amp
from amp_transpiler import paddle
from amp_transpiler.paddle.framework.missing_names import REASONS, why_not

ROOT = pathlib.Path(amp.__file__).parent
_PLACES = (
    "paddle|static|nn|optimizer|distributed|amp|amp_transpiler|incubate|io|metric|fleet|utils|tensor|Executor|Session"
)
NAME = re.compile(rf"(?<![\w./@])(?:{_PLACES})(?:\.[A-Za-z_]\w*)+(?!\w*/)")
CALL = re.compile(r"\b(Executor|DataParallelExecutor|Session)(?:\.(\w+))?\((?:place, )?(\w+)=")
OF_AN_OPTIMIZER = {"optimizer.minimize"}  # a method of the user's object


def texts(path):
    """Yield the string constants of a file that are sentences and no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, owners) and isinstance(n.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
            and " " in node.value
        ):
            yield node.value


def find(name):
    """Return what a message's name stands for, None if there is no such thing."""
    first, _, rest = name.partition(".")
    roots = {"paddle": [paddle], "amp_transpiler": [amp]}.get(first)
    parts = (name if roots is None else rest).split(".")
    for root in roots or (paddle, paddle.static, paddle.distributed, amp):
        value = root
        for part in parts:
            value = getattr(value, part, None)
        if value is not None:
            return value
    return None


FILES = {str(path.relative_to(ROOT)): path for path in (ROOT / "paddle").rglob("*.py")}


def test_names_in_messages_exist():
    named = {(file, name) for file, path in FILES.items() for text in texts(path) for name in NAME.findall(text)}
    assert len(named) > 20
    assert not {(file, name) for file, name in named if name not in OF_AN_OPTIMIZER and find(name) is None}


def test_options_in_messages_exist():
    calls = [(file, *call) for file, path in FILES.items() for text in texts(path) for call in CALL.findall(text)]
    assert len(calls) > 2
    for file, owner, method, option in calls:
        called = getattr(find(owner), method or "__init__")
        parameters = inspect.signature(called).parameters
        has_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        assert has_any or option in parameters, (file, owner, method, option)


NAMED_BY_REASONS = ["Executor.train", "create_parameter", "static.create_global_var", "arange"]
NAMED_BY_REASONS += ["uniform", "normal", "poisson", "binomial", "standard_gamma"]


@pytest.mark.parametrize("name", NAMED_BY_REASONS)
def test_what_takes_the_place_of_a_missing_name_exists(name):
    assert any(name in reason for reason in (*REASONS, why_not("distribution")))
    assert find(name) is not None


@pytest.mark.parametrize(
    "name", ["static.amp.disable_amp", "paddle.create_global_var", "optimizer.Muon", "static.nn.fcc"]
)
def test_a_name_that_is_not_there_is_found_out(name):
    assert NAME.fullmatch(name)
    assert find(name) is None
