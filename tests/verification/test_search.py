"""The search for the best conversion that keeps a limit: what it finds, explains and reports."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.verification import search
from tests import support
from tests.support import array, chain, parse

W = array(4, 4, seed=1, scale=0.5)
EYE = np.eye(4, dtype=np.float32)
X = {"x": array(2, 4)}


def body(text, **weights):
    return parse(f"(float[2,4] x) => (float[2,4] y) {{ {text} }}", w=W, eye=EYE, **weights)


# name: (model, data, nodes that must be float32)
FAILING = {
    "a product overflows": (
        body(
            "[a] h = MatMul (x, eye) [b] d = Add (h, h) [c] m = MatMul (d, eye) [d] s = Mul (m, tiny) [e] y = MatMul "
            "(s, w)",
            tiny=np.float32(1e-4),
        ),
        {"x": np.full((2, 4), 4e4, np.float32)},
        {"b"},
    ),
    "a difference cancels": (
        body("[a] h = MatMul (x, eye) [b] s = Add (h, v) [c] d = Sub (s, x) [e] y = MatMul (d, w)", v=array(4, seed=3)),
        {"x": 1000.0 + array(2, 4)},
        {"c"},
    ),
    "inside a body": (
        parse(
            """(float[2,4] x, bool c) => (float[2,4] y) {
                h = MatMul (x, eye)
                y = If (c) <then_branch = t () => (float[2,4] p) { [a] d = Add (h, h) [b] e = Mul (d, tiny) [e] p
                    = MatMul (e, w) },
                            else_branch = e () => (float[2,4] q) { [z] q = MatMul (h, w) }>
            }""",
            w=W,
            eye=EYE,
            tiny=np.float32(1e-4),
        ),
        {"x": np.full((2, 4), 4e4, np.float32), "c": np.array(True)},
        {"a"},
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_the_data_given_goes_back_to_float32(name):
    model, feeds, required = FAILING[name]
    report = amp.transpile(model, inputs=feeds, prefer="size", rescale="no")
    assert report.verdict_word == "verified", report.verdict
    decisions = support.decisions(report)
    assert all(decisions[node] == "high" for node in required)
    support.assert_valid(report.program)
    support.assert_close(support.run(model, feeds), support.run_emulated(report.program, feeds), 0.02)
    assert "low" in decisions.values(), "not everything"


@pytest.mark.parametrize("name", FAILING)
def test_the_same_model_on_tame_data_needs_no_search(name, monkeypatch):
    monkeypatch.setattr(search, "collect_evidence", lambda *_, **__: pytest.fail("it searches"))
    model, feeds, _ = FAILING[name]
    report = amp.transpile(model, inputs={**feeds, "x": X["x"]}, tolerance=0.05, prefer="size")
    assert report.repaired == ()


@pytest.mark.parametrize("level", ["OD", "O1", "O2"])
def test_other_levels_do_not_search(level):
    """They do what their lists say, and warn or fail."""
    model, feeds, _ = FAILING["a product overflows"]
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Add", "Mul"])
    with pytest.raises(CheckFailed, match="non-finite") as caught:
        amp.transpile(model, level=level, inputs=feeds, amp_lists=lists, prefer="size")
    assert caught.value.report.repaired == ()


DEEP = chain(*["MatMul ({}, w)", "Tanh ({})"] * 6, w=array(4, 4, seed=2))


@functools.cache
def free_of_limits(dtype):
    return amp.transpile(DEEP, inputs=X, dtype=dtype, tolerance="100%", prefer="size")


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.7, 0.3, 0.1, 0.03, 0.01, 0.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_reachable_is_never_refused(share, dtype):
    free = free_of_limits(dtype)
    error = max(row.relative for row in free.outputs.values())
    report = amp.transpile(DEEP, inputs=X, dtype=dtype, tolerance=share * error, prefer="size")
    assert report.verdict_word == "verified"
    assert max(row.relative for row in report.outputs.values()) <= max(share * error, 2.0**-18)
    assert report.low_nodes < free.low_nodes
    assert set(report.repaired) == {
        row.name for row, was in zip(report.decisions, free.decisions, strict=True) if row.precision != was.precision
    }


@pytest.mark.slow
def test_a_smaller_error_is_not_given_for_fewer_low_products():
    """Products come first. Of choices with as many of them, that with the fewest casts is the best."""
    products = []
    for share in (1e-3, 3e-4, 1e-4, 3e-5, 1e-5):
        decisions = amp.transpile(DEEP, inputs=X, tolerance=share, prefer="size").decisions
        products.append(sum(row.op == "MatMul" and row.precision == "low" for row in decisions))
    assert products == sorted(products, reverse=True)
    assert len({*products}) >= 4


BRANCHES = parse(
    "(float[4,4] x) => (float[4,16] y, float[4,8] z) { "
    + " ".join(f"[m{i}] h{i} = MatMul (x, w{i})" for i in range(6))
    + " y = Concat <axis = 1> (h0, h1, h2, h3) z = Concat <axis = 1> (h4, h5) }",
    **{f"w{i}": array(4, 4, seed=i, scale=scale) for i, scale in enumerate((1.0, 0.7, 0.5, 0.3, 1.0, 0.4))},
)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_no_product_more_would_keep_the_limit(share):
    """What is left of the limit is asked for, of every output its own."""
    feeds = {"x": array(4, 4, seed=9)}
    free = amp.transpile(BRANCHES, inputs=feeds, tolerance="100%", prefer="size")
    tolerance = share * max(row.relative for row in free.outputs.values())
    chosen = support.decisions(amp.transpile(BRANCHES, inputs=feeds, tolerance=tolerance, prefer="size"))
    high = [f"m{i}" for i in range(6) if chosen[f"m{i}"] == "high"]
    assert high
    for name in high:
        others = [other for other in high if other != name]
        more = amp.transpile(BRANCHES, inputs=feeds, level="O2", disable_amp=others)
        assert max(row.relative for row in more.outputs.values()) > tolerance, f"{name} may be low"


def exact_error(report):
    """Return the largest error of the turns whose float32 products are exact: the others cannot be mended."""
    if report.draws is None:  # float32 throughout
        return 0.0
    return max(max(report.draws.plain[name], *errors[::2]) for name, errors in report.draws.errors.items())


@functools.cache
def errors_of_all_choices():
    """Products that are float32 -> the error, of each choice in which the six products may be low."""
    feeds, names = {"x": array(4, 4, seed=9)}, [f"m{i}" for i in range(6)]
    choices = [high for count in range(7) for high in itertools.combinations(names, count)]
    return {
        high: exact_error(amp.transpile(BRANCHES, inputs=feeds, tolerance="100%", disable_amp=high, prefer="size"))
        for high in choices
    }


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 0.8, 0.6, 0.5, 0.4, 0.25])
def test_wrong_predictions_cost_two_products_at_most(share, monkeypatch):
    """Those products that add the most are predicted to add the least, so what was measured must tell.

    What fails blames all its nodes in the proportions that were predicted, so a wrong order takes many runs to mend.
    The search before tried all choices of so small a program; on real models that kept nothing more low.
    """
    wrong = {"y": {f"m{i}": error for i, error in enumerate((1e-12, 1e-11, 1e-10, 1e-9, 1e-12, 1e-10))}}
    monkeypatch.setattr(search, "collect_evidence", lambda *_, **__: Evidence(node_errors_by_output=wrong))
    feeds, names, errors = {"x": array(4, 4, seed=9)}, {f"m{i}" for i in range(6)}, errors_of_all_choices()
    tolerance = share * errors[()]
    fewest = min(len(high) for high, error in errors.items() if error <= tolerance)
    chosen = support.decisions(amp.transpile(BRANCHES, inputs=feeds, tolerance=tolerance, cache=False, prefer="size"))
    assert sum(chosen[name] == "high" for name in names) <= fewest + 2


# Six branches, of which one loses nearly all of its digits in a difference; nothing that is predicted tells it apart.
CULPRIT = parse(
    "(float[4,4] x) => (float[24,4] y) {"
    + " ".join(
        f"[m{i}] h{i} = MatMul (x, w{i}) [t{i}] t{i} = Tanh (h{i}) [a{i}] a{i} = Add (t{i}, h{i})" for i in range(6)
    )
    + " [big] b = Add (a3, offset) [small] d = Sub (b, offset)"
    + " [y] y = Concat <axis = 0> (a0, a1, a2, d, a4, a5) }",
    **{f"w{i}": array(4, 4, seed=i, scale=0.5) for i in range(6)},
    offset=np.float32(300.0),
)


@pytest.mark.slow
@pytest.mark.parametrize("predicted", [0.0, 1e-8, 1e-6])
def test_what_fails_is_told_apart_by_what_was_measured(predicted, monkeypatch):
    """Every node is predicted to add the same: each choice that fails or holds says which of them to blame."""
    names = [*(f"{kind}{i}" for kind in "mta" for i in range(6)), "big", "small"]
    flat = {"y": dict.fromkeys(names, predicted)}
    monkeypatch.setattr(search, "collect_evidence", lambda *_, **__: Evidence(node_errors_by_output=flat))
    report = amp.transpile(CULPRIT, inputs={"x": array(4, 4, seed=9)}, tolerance=0.01, cache=False, prefer="size")
    chosen = support.decisions(report)
    assert report.verdict_word == "verified"
    assert chosen["big"] == "high"
    assert sum(precision == "low" for precision in chosen.values()) >= 17, "all but the two, or their whole branch"


@pytest.mark.slow
def test_each_node_says_why_it_went_back():
    report = amp.transpile(DEEP, inputs=X, tolerance=1e-4, prefer="size")
    assert report.repaired
    reasons = support.reasons(report)
    assert all(reasons[name].startswith("for the tolerance: ") for name in report.repaired)
    rows = {row.name: row for row in report.decisions}
    assert all(rows[name].error is not None and rows[name].error > 0 for name in report.repaired)
    assert all(rows[name].sample == "sample 1" and rows[name].largest for name in report.repaired)


@pytest.mark.slow
def test_the_second_question_needs_no_sweep(monkeypatch, tmp_path):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(tmp_path))
    first = amp.transpile(DEEP, inputs=X, tolerance=1e-4, prefer="size")
    monkeypatch.setattr(search, "collect_evidence", lambda *_, **__: pytest.fail("it sweeps again"))
    again = amp.transpile(DEEP, inputs=X, tolerance=1e-4, prefer="size")
    assert support.decisions(again) == support.decisions(first)
    with pytest.raises(pytest.fail.Exception, match="sweeps again"):
        amp.transpile(DEEP, inputs=X, tolerance=1e-4, cache=False, prefer="size")


TAMED = chain("MatMul ({}, w)", "Exp ({})", "MatMul ({}, w)", w=array(4, 4, seed=2, scale=0.3))


def test_rules_give_way_to_the_users_own_data():
    """An exponential is unsafe by nature; ranges with headroom speak for this one."""
    asked = amp.transpile(TAMED, inputs=X, tolerance=0.01, prefer="size")
    assert (asked.verdict_word, asked.high_nodes) == ("verified", 0)
    assert amp.transpile(TAMED, tolerance=0.01, prefer="size").high_nodes == 1, "no data were given"
    support.assert_close(
        support.run(TAMED, {"x": 1.5 * X["x"]}), support.run_emulated(asked.program, {"x": 1.5 * X["x"]}), 0.01
    )


def test_rules_stay_where_ranges_do_not_speak_for_the_node():
    report = amp.transpile(TAMED, inputs={"x": 8.0 * np.abs(X["x"])}, tolerance=0.01, headroom=1e4, prefer="size")
    assert report.high_nodes >= 1
    assert report.verdict_word == "verified"


def worst(exact, low):
    return max(float(np.abs(sample["y"] - other["y"]).max()) for sample, other in zip(exact, low, strict=True))


def last(proto):
    return proto.graph.output[0].name


def measured_by(proto):
    name = last(proto)
    return lambda exact, low: worst([{"y": sample[name]} for sample in exact], [{"y": other[name]} for other in low])


@pytest.mark.slow
def test_a_metric_is_the_limit():
    metric = measured_by(DEEP)
    loose = amp.transpile(DEEP, inputs=X, metric=metric, metric_bound=1.0, prefer="size")
    assert loose.repaired == ()
    assert loose.verdict.startswith("verified: <lambda> is ")
    bound = 0.3 * loose.metric.value
    tight = amp.transpile(DEEP, inputs=X, metric=metric, metric_bound=bound, prefer="size")
    assert tight.metric.value <= bound
    assert 0 < tight.low_nodes < loose.low_nodes


def test_an_unreachable_metric_says_what_was_achieved():
    with pytest.raises(CheckFailed, match=r"<lambda> is 3, allowed are 2") as caught:
        amp.transpile(DEEP, inputs=X, metric=lambda *_: 3.0, metric_bound=2.0, prefer="size")
    assert caught.value.report.metric == dataclasses.replace(caught.value.report.metric, value=3.0, bound=2.0)


@pytest.mark.slow
def test_the_curve_holds_the_chosen_point():
    report = amp.transpile(DEEP, inputs=X, tolerance=1e-4, frontier=True, prefer="size")
    points = report.frontier
    assert [point.error for point in points] == sorted((point.error for point in points), reverse=True)
    [chosen] = [point for point in points if point.chosen]
    assert chosen.measured
    assert chosen.error == max(row.relative for row in report.outputs.values())
    assert chosen.casts == report.casts
    assert chosen.low_share == pytest.approx(report.low_nodes / (report.low_nodes + report.high_nodes))
    exact = points[-1]
    assert (exact.error, exact.low_share, exact.casts) == (0.0, 0.0, 0)
    assert all(point.milliseconds > 0 for point in points)
    assert report.headroom == 4.0


def test_the_curve_is_worked_out_without_a_search():
    report = amp.transpile(DEEP, inputs=X, frontier=True, prefer="size")
    assert report.repaired == ()
    assert len(report.frontier) > 2
    assert [point.chosen for point in report.frontier].index(True) == 0
    assert all(row.milliseconds is not None for row in report.decisions if row.precision == "low")


def test_time_is_preferred_where_asked():
    report = amp.transpile(DEEP, inputs=X, prefer="time")
    assert report.low_nodes == 0, "a product of two rows by four gains nothing"
    assert report.predicted_ms[0] == report.predicted_ms[1]
    default = amp.transpile(DEEP, inputs=X, prefer="size")
    assert default.low_nodes > 0
    assert default.predicted_ms[1] > default.predicted_ms[0]


# options -> words of the error
WRONG = {
    "prefer at another level": ({"prefer": "time", "level": "O2"}, "prefer has a meaning at level auto only"),
    "headroom at another level": ({"headroom": 2.0, "level": "O1"}, "headroom has a meaning at level auto only"),
    "frontier of a system": ({"frontier": True, "policy": "torch"}, "frontier has a meaning at level auto only"),
    "no objective": ({"prefer": "speed"}, "prefer is 'speed': expected 'balance', 'time' or 'size'"),
    "a headroom below 1": ({"headroom": 0.5}, "headroom is 0.5: expected a number of at least 1"),
    "a headroom that is no number": ({"headroom": math.nan}, "headroom is nan"),
    "a metric without a bound": ({"metric": worst}, "go together"),
    "an unknown device": ({"device": "V100"}, "unknown device 'V100'"),
    "an unknown dimension": ({"dims": {"batch": 8}}, "no input has an open dimension 'batch'"),
    "a size of zero": ({"dims": {"batch": 0}}, "dims has batch=0"),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        amp.transpile(DEEP, inputs=X, **options)


@pytest.mark.slow
def test_a_recipe_keeps_what_a_search_found(tmp_path, monkeypatch):
    searched = amp.transpile(DEEP, inputs=X, tolerance=1e-4, prefer="size")
    searched.save_recipe(tmp_path / "r.toml")
    monkeypatch.setattr(search, "collect_evidence", lambda *_, **__: pytest.fail("it searches"))
    again = amp.transpile(DEEP, inputs=X, recipe=tmp_path / "r.toml", prefer="size")
    assert support.decisions(again) == support.decisions(searched)
    assert again.casts == searched.casts


NORMALISED = """(float[8,64] x) => (float[8,16] y) {
    [square] p = Pow (x, two) [mean] m = ReduceMean (p, last) [eps] e = Add (m, least) [root] r = Sqrt (e)
    [divide] n = Div (x, r) [product] y = MatMul (n, w) }"""


@pytest.mark.parametrize(("least", "expected"), [(1e-6, "high"), (2.0**-10, "low")], ids=["rounded", "exact"])
def test_a_normalisation_becomes_low_as_a_whole_or_not_at_all(least, expected):
    """Its least number, which rounding would spoil, keeps it float32. In two precisions it would not be fused."""
    numbers = {"two": np.float32(2.0), "least": np.float32(least), "last": np.array([-1])}
    model = parse(NORMALISED, **numbers, w=array(64, 16, seed=2))
    decisions = support.decisions(amp.transpile(model, inputs={"x": array(8, 64)}, tolerance=0.05, prefer="size"))
    assert decisions.pop("product") == "low"
    assert {*decisions.values()} == {expected}


@pytest.mark.parametrize(("longer", "expected"), [(True, "high"), (False, "low")])
def test_what_data_allow_is_not_taken_where_it_is_slower(monkeypatch, longer, expected):
    model = parse(
        "(float[N,512] x) => (float[N,512] y) { [a] h = MatMul (x, w) [b] e = Exp (h) [c] y = MatMul (e, w) }",
        w=array(512, 512, scale=0.01),
    )
    told = []

    def milliseconds(program, policy):
        told.append(policy.numerics)
        return float(len(told) == 1) if longer else 0.0

    monkeypatch.setattr(search, "_milliseconds", milliseconds)
    options = {"tolerance": 0.05, "prefer": "time", "dims": {"N": 65536}}
    report = amp.transpile(model, inputs={"x": array(4, 512, scale=0.1)}, **options)
    assert support.decisions(report)["b"] == expected
    assert told == ["shown", "shown"]
