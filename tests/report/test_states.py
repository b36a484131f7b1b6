"""The states of a training step in the forms of the report."""

import json

import pytest
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.graph.training_step import State
from amp_transpiler.report import as_html
from amp_transpiler.report.as_json import report_as_dict
from amp_transpiler.report.table import summary
from amp_transpiler.report.wording import state_lines
from foreign.library import by_hand


def state(name, role="parameter", master=""):
    return State(input=name, output=f"{name}_new", role=role, reason="shown", master=master)


@pytest.mark.parametrize(
    ("states", "lines"),
    [
        ([], []),
        ([state("w")], ["1 parameter: w"]),
        ([state("w", master="W"), state("b")], ["2 parameters: w, b; masters: W"]),
        (
            [*(state(name) for name in "abcde"), state("m", "moment"), state("n", "counter")],
            ["5 parameters: a, b, c and 2 more", "1 moment: m", "1 counter: n"],
        ),
    ],
)
def test_a_line_a_role(states, lines):
    assert state_lines(states) == lines


def test_states_are_in_every_form_of_the_report():
    step = by_hand("linear", "sgd")
    feeds = {**step.start, **step.data(1)[0]}
    report = amp.transpile(step.model, level="O2", inputs=feeds, keep_io_types={"a": "low"}, loss_scaling=True)
    console = Console(width=200)
    with console.capture() as printed:
        console.print(summary(report))
    assert "2 parameters: a, b; masters: a_fp32_master_0" in printed.get()
    rows = json.loads(json.dumps(report_as_dict(report)))["states"]
    assert (rows[0]["input"], rows[0]["role"], rows[0]["master"]) == ("a", "parameter", "a_fp32_master_0")
    page = as_html.page([(report, None)])
    assert (
        "<td><code><bdi>b</bdi></code></td><td><code><bdi>b_new</bdi></code></td><td>parameter</td><td>its own</td>"
        in page
    )
