"""The report as one self-contained HTML page: styles and pictures inline, no script, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from amp_transpiler.report.as_json import package_versions
from amp_transpiler.report.charts import error_chart, operator_chart
from amp_transpiler.report.figures import Figure, figures_of, has_floats
from amp_transpiler.report.report import OutputComparison, Report
from amp_transpiler.report.table import (
    human_bytes,
    outputs_worst_first,
    printable,
)
from amp_transpiler.report.verdict import tone_of
from amp_transpiler.report.wording import (
    PRECISIONS,
    human_number,
    percent,
    precision_name,
    reasons,
    remarks,
    target_words,
    training_words,
)

__all__ = ["page", "summary"]

_OUTPUTS_IN_SUMMARY = 5

_STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #5d6b7c; --line: #dfe4ea;
  --low: #1f7a8c; --high: #e09f3e; --untouched: #b8c1cc; --good: #18794e; --warn: #9a6700; --bad: #c4320a; }
@media (prefers-color-scheme: dark) { :root { --paper: #11161d; --card: #19202a; --ink: #e6ebf2; --soft: #93a1b3;
  --line: #2b3543; --low: #45b3c8; --high: #e8b04f; --untouched: #4c5a6b;
  --good: #4cc38a; --warn: #e2b340; --bad: #ff7a59; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 0 0 .8rem; }
p { margin: .2rem 0; } code { font: .92em ui-monospace, monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); } article + article { margin-top: 4rem; }
section, details { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.2rem;
  margin-top: 1rem; }
.verdict { border-left: 4px solid var(--warn); } .verdict.good { border-left-color: var(--good); }
.verdict.bad { border-left-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: 1rem; margin-top: 1rem; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; overflow: visible; } svg text { fill: var(--ink); font-size: 12px; }
svg .tick, svg .figure { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); }
.bar.low, .key.low { fill: var(--low); background: var(--low); } .bar.bad { fill: var(--bad); }
.bar.high, .key.high { fill: var(--high); background: var(--high); }
.bar.untouched, .key.untouched { fill: var(--untouched); background: var(--untouched); }
.key { display: inline-block; width: .75rem; height: .75rem; border-radius: 3px; margin: 0 .35rem 0 1rem; }
.key:first-child { margin-left: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; color: var(--soft); font-weight: 600; } th, td { padding: .3rem .8rem .3rem 0;
  vertical-align: top; }
tbody tr { border-top: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.low { color: var(--low); } td.high { color: var(--warn); } td.untouched { color: var(--soft); }
.bad-text { color: var(--bad); font-weight: 600; }
.warn-text { color: var(--warn); font-weight: 600; } summary { cursor: pointer; font-weight: 600; }
details table { margin-top: .8rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
"""


def page(reports: Sequence[tuple[Report, str | None]]) -> str:
    """Return a whole HTML document.

    Args:
        reports: for each model its report and, if a check failed and nothing was written, the reason.
    """
    title = f"{len(reports)} models" if len(reports) != 1 else _html(reports[0][0].source)
    articles = "\n".join(_article(report, error) for report, error in reports)
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items() if name != "json_format")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>amp-transpile: {title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'{articles}\n<p class="soft" style="margin-top:2rem">{_html(versions)}</p>\n</main>\n</body>\n</html>\n'
    )


def summary(report: Report) -> str:
    """Return a few lines for a notebook, which has styles of its own: the counts, the worst outputs and the verdict."""
    target = "" if report.destination is None else f" → {_html(report.destination)}"
    counts = ", ".join(
        f"{sum(row.precision == precision for row in report.decisions)} {_html(precision_name(precision, report))}"
        for precision in PRECISIONS
    )
    worst = outputs_worst_first(report.outputs.values())[:_OUTPUTS_IN_SUMMARY]
    figures = figures_of(worst)
    rows = "".join(
        f"<tr><td>{_html(output.name)}</td>{''.join(f'<td>{_html(figure.of(output))}</td>' for figure in figures)}</tr>"
        for output in worst
    )
    head = f"<tr><th>output</th>{''.join(f'<th>{figure.head}</th>' for figure in figures)}</tr>"
    return (
        f"<div><b>{_html(report.source)}{target}</b><br>{_html(report.asked)}, target {_html(report.target)}<br>"
        f"{report.nodes} nodes: {counts}; {report.casts} casts inserted<br>{_html(report.verdict)}"
        f"{''.join(f'<br>warning: {_html(warning)}' for warning in report.warnings)}"
        f"{f'<table>{head}{rows}</table>' if rows else ''}</div>"
    )


def _html(text: object) -> str:
    """Return `text` escaped for HTML text or a quoted attribute: names come from the model and are not trusted."""
    return escape(printable(text), quote=True)


def _article(report: Report, error: str | None) -> str:
    target = "nothing written" if report.destination is None or error else _html(report.destination)
    to = "" if report.is_copy else f" {_html(report.dtype)}, {_html(target_words(report))},"
    asked = f"{_html(report.asked)},{to} opset {_opset(report)}"
    parts = [
        f"<article>\n<h1>{_html(report.source)} → {target}</h1>",
        f'<p class="soft">{asked}, {report.seconds:.1f} s</p>',
        _verdict(report, error),
        _tiles(report),
        _operators(report),
        _outputs(report),
        _states(report),
        _training(report),
        _why(report),
        _list("Notes", remarks(report)),
        _list("Made float32 because the first result was not accurate enough", report.repaired),
        _decisions(report),
    ]
    return "\n".join(part for part in parts if part) + "\n</article>"


def _opset(report: Report) -> str:
    before, after = report.opset
    return str(before) if before == after else f"{before} → {after}"


def _verdict(report: Report, error: str | None) -> str:
    kind = "bad" if error else tone_of(report.verdict_word)
    checks = f'<p class="soft">Passed: {_html("; ".join(report.checks))}</p>' if report.checks else ""
    failed = f'<p class="bad-text">{_html(error)}</p>' if error else ""
    warnings = "".join(f'<p class="warn-text">{_html(warning)}</p>' for warning in report.warnings)
    verdict = f"<p><strong>{_html(report.verdict)}</strong></p>"
    return f'<section class="verdict {kind}">{verdict}{failed}{warnings}{checks}</section>'


def _tiles(report: Report) -> str:
    choice = report.low_nodes + report.high_nodes
    share = f"{report.low_nodes / choice:.0%}" if choice else "-"
    tiles = [
        (share, f"of {choice} float nodes are {_html(precision_name('low', report))}"),
        (str(report.casts), f"casts inserted, {report.casts_removed} removed"),
        (human_bytes(report.weight_bytes[1]), f"of weights, was {human_bytes(report.weight_bytes[0])}"),
    ]
    if report.file_bytes[1] is not None:
        tiles.append((human_bytes(report.file_bytes[1]), f"on disk, was {human_bytes(report.file_bytes[0])}"))
    floats = [output for output in outputs_worst_first(report.outputs.values()) if has_floats(output)]
    if floats:
        tiles.append((percent(floats[0].relative), "relative error of the worst output"))
    cells = "".join(f'<div><b>{big}</b><span class="soft">{small}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{cells}</div>'


def _operators(report: Report) -> str:
    if not report.decisions:
        return ""
    legend = "".join(f'<span class="key {p}"></span>{_html(precision_name(p, report))}' for p in PRECISIONS)
    return (
        f'<section><h2>Nodes by operator</h2><p class="soft">{legend}</p>{operator_chart(report)}'
        f"{_missing(report)}</section>"
    )


def _missing(report: Report) -> str:
    if not report.missing_kernels:
        return ""
    ops = sorted(report.missing_kernels.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"<code>{_html(op)}</code> {count}" for op, count in ops)
    return f'<p class="soft">No {_html(report.dtype)} kernel on {_html(report.target)}: {named}</p>'


def _outputs(report: Report) -> str:
    if not report.outputs:
        return ""
    ordered = outputs_worst_first(report.outputs.values())
    figures = figures_of(ordered)
    rows = []
    for output in ordered:
        shape = " by ".join(map(str, output.shape)) or "scalar"
        cells = "".join(_figure(figure, output) for figure in figures)
        counts = "".join(f'<td class="n">{count}</td>' for count in (output.elements, output.samples))
        name = f"<td><code>{_html(output.name)}</code></td><td>{_html(output.dtype)} {shape}</td>"
        rows.append(f"<tr>{name}{cells}{counts}</tr>")
    heads = (*(figure.head for figure in figures), "elements", "samples")
    head = "<th>output</th><th>type</th>" + "".join(f'<th class="n">{name}</th>' for name in heads)
    chart = error_chart(ordered) if any(map(has_floats, ordered)) else ""
    return f"<section><h2>Error of each output</h2>{chart}<br>{_table(head, rows)}</section>"


def _figure(figure: Figure, output: OutputComparison) -> str:
    bad = " bad-text" if figure.is_bad(output) else ""
    return f'<td class="n{bad}">{_html(figure.of(output))}</td>'


def _states(report: Report) -> str:
    """Return the states of a training step, each with its master and why it is one."""
    if not report.states:
        return ""
    rows = [
        f"<tr><td><code>{_html(state.input)}</code></td><td><code>{_html(state.output)}</code></td>"
        f"<td>{state.role}</td><td>{_html(state.master or 'its own')}</td><td>{_html(state.reason)}</td></tr>"
        for state in report.states
    ]
    head = '<th>state</th><th>its update</th><th>role</th><th>master</th><th style="width:100%">reason</th>'
    return f"<section><h2>States</h2>{_table(head, rows)}</section>"


def _training(report: Report) -> str:
    """Return the ways of a training step's states, the furthest off first."""
    if report.steps is None:
        return ""
    rows = []
    for way in sorted(report.steps.states.values(), key=lambda way: (not way.fails, -way.relative, way.name)):
        bad = " bad-text" if way.fails else ""
        allowed = percent(way.allowed) if math.isfinite(way.allowed) else "not judged"
        ways = (human_number(way.way), human_number(way.low_way))
        cells = "".join(f'<td class="n">{cell}</td>' for cell in ways)
        cells += f'<td class="n{bad}">{percent(way.relative)}</td><td class="n">{allowed}</td>'
        rows.append(f"<tr><td><code>{_html(way.name)}</code></td><td>{way.role}</td>{cells}</tr>")
    heads = ("way in fp32", "way here", "difference", "allowed")
    head = "<th>state</th><th>role</th>" + "".join(f'<th class="n">{name}</th>' for name in heads)
    words = f'<p class="soft">{_html(training_words(report.steps))}</p>'
    return f"<section><h2>Training steps</h2>{words}{_table(head, rows) if rows else ''}</section>"


def _why(report: Report) -> str:
    rows = [
        f'<tr><td class="{precision}">{_html(precision_name(precision, report))}</td><td class="n">{count}</td>'
        f"<td>{_html(reason)}</td></tr>"
        for precision in PRECISIONS
        for reason, count in reasons(report, precision)
    ]
    if not rows:
        return ""
    head = '<th>precision</th><th class="n">nodes</th><th style="width:100%">reason</th>'
    return f"<section><h2>Why</h2>{_table(head, rows)}</section>"


def _list(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    return f"<section><h2>{title}</h2><ul>{''.join(f'<li>{_html(item)}</li>' for item in items)}</ul></section>"


def _decisions(report: Report) -> str:
    rows = (
        f'<tr><td class="{row.precision}">{_html(precision_name(row.precision, report))}</td><td>{_html(row.op)}</td>'
        f"<td><code>{_html(row.name)}</code></td><td>{_html(row.scope)}</td><td>{_html(row.reason)}</td></tr>"
        for row in report.decisions
    )
    head = "<th>precision</th><th>operator</th><th>node</th><th>scope</th><th>reason</th>"
    return f"<details><summary>Every node ({len(report.decisions)})</summary>{_table(head, rows)}</details>"


def _table(head: str, rows: Iterable[str]) -> str:
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
