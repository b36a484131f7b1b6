"""What a report says about the converted program: where its casts are."""

import amp_transpiler as amp
from amp_transpiler.report import CastRow
from tests.support import array, casts, parse

CHAIN = "(float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) b = Exp(a) y = MatMul(b, w) }"
BRANCH = """(float[2,4] x, bool c) => (float[2,4] y)
{
    a = MatMul(x, w)
    y = If (c) <then_branch = t () => (float[2,4] p) { p = Exp(a) },
                else_branch = e () => (float[2,4] q) { q = Relu(a) }>
}"""


def converted(text, **options):
    return amp.transpile(parse(text, w=array(4, 4)), level="O1", verify=False, **options)


def test_every_inserted_cast_has_a_row_that_names_its_neighbours():
    report = converted(CHAIN)
    by_value = {row.value: row for row in report.casts_at}
    first, exp, last = (row.name for row in report.decisions)
    assert [row.precision for row in report.decisions] == ["low", "high", "low"]
    assert len(report.casts_at) == report.casts == len(casts(report.program)) == 4
    assert by_value["x"] == CastRow("x", "float32", "float16", "", (first,))
    assert by_value["a"] == CastRow("a", "float16", "float32", first, (exp,))
    assert by_value["b"] == CastRow("b", "float32", "float16", exp, (last,))
    to_the_output = next(row for row in report.casts_at if row.producer == last)
    assert (to_the_output.target, to_the_output.readers) == ("float32", ())


def test_a_cast_in_a_body_names_its_body_and_no_maker_from_outside():
    report = converted(BRANCH)
    inner = [row for row in report.casts_at if row.scope]
    assert inner, "the fixture has a cast inside of a branch"
    assert {row.producer for row in inner} <= {row.name for row in report.decisions if row.scope} | {""}


def test_what_is_not_known_has_no_figure():
    report = amp.transpile(parse(CHAIN, w=array(4, 4)), level="O0", verify=False)
    assert {(row.error, row.largest, row.milliseconds) for row in report.decisions} == {(None, None, None)}
    assert (report.predicted_ms, report.frontier, report.device, report.casts_at) == ((None, None), (), "", ())
