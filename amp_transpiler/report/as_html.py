"""Writes the report as one self-contained HTML page: styles, pictures and a small script inline, nothing fetched.

Everything can be read without the script, which only sorts and filters. The page's own policy lets a browser run that
script and no other, and fetch nothing: names come from models, and are not trusted.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from amp_transpiler.report import sections
from amp_transpiler.report.as_json import package_versions
from amp_transpiler.report.charts import error_chart, operator_chart
from amp_transpiler.report.figures import figures_of, has_floats
from amp_transpiler.report.frontier_chart import frontier_chart
from amp_transpiler.report.headline import headline, kept_words, predicted_words, slower_words
from amp_transpiler.report.page_table import Cell, PageTable
from amp_transpiler.report.picture import HEATS, Heats, levels_of
from amp_transpiler.report.precision import KINDS, kind_of
from amp_transpiler.report.record import ReportRecord
from amp_transpiler.report.table import human_bytes, outputs_worst_first, printable
from amp_transpiler.report.verdict import tone_of
from amp_transpiler.report.wording import engine_words, percent, precision_name, remarks, target_words, training_words

__all__ = ["heat_names", "page", "render", "summary"]

_OUTPUTS_IN_SUMMARY = 5
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"
_SOURCES = "Errors of single nodes add in squares. A node is listed with what it adds to the worst output."
_COSTLY = "Predicted time in float32, on {device}."
_TIMES = (
    "Each node by itself on {device}, as it was decided. Casts are not among them, and in a run the host asks for the "
    "next kernels during a long one: the time of the whole stands above."
)
_ATTRIBUTES = "An operator opens to its attributes."
_MAGNITUDES = (
    "Magnitudes: how many numbers among a node's inputs and results are of which size on the data, from small to "
    "large, two powers of two a bar; lines stand at the smallest normal number of {low} and at its largest."
)
_FRONTIER = (
    "Each point is a choice of precisions: its error, and its predicted time on {device}. Open dots are predicted."
)


def page(reports: Sequence[tuple[ReportRecord, str | None]]) -> str:
    """Return a whole HTML document.

    Args:
        reports: for each model its report and, if a check failed and nothing was written, the reason.
    """
    models = [_model(report, error, f"m{number}") for number, (report, error) in enumerate(reports, 1)]
    title = f"{len(models)} models" if len(models) != 1 else reports[0][0].source
    return render("page.html", title=f"amp-transpile: {title}", models=models)


def summary(report: ReportRecord) -> str:
    """Return a few lines for a notebook, which has its own styles: the counts, the worst outputs and the verdict."""
    counts = ", ".join(
        f"{sum(kind_of(row.precision) == precision for row in report.decisions)} {precision_name(precision, report)}"
        for precision in KINDS
    )
    worst = outputs_worst_first(report.outputs.values())[:_OUTPUTS_IN_SUMMARY]
    figures = figures_of(worst)
    outputs = PageTable(
        "",
        (("output", ""), *((figure.head, "") for figure in figures)),
        tuple((Cell(output.name), *(Cell(figure.of(output)) for figure in figures)) for output in worst),
    )
    text = _environment().get_template("summary.html")
    return text.render(
        report=report,
        slower=kept_words(report) or slower_words(report),
        predicted=predicted_words(report),
        counts=counts,
        outputs=outputs,
        sources=sections.sources_table(report),
        costly=sections.costly_table(report),
        frontier=sections.frontier_table(report),
    ).replace("\n", "")


def render(template: str, **values: Any) -> str:
    """Return a whole page made of a template, with the style sheet, the script and the policy that allows them.

    Args:
        template: its file.
        values: what it shows.
    """
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup(_file("page.css")),  # noqa: S704  ours
            script=Markup(script),  # noqa: S704  ours
            policy=f"{_POLICY}; script-src 'sha256-{digest}'",
            versions=", ".join(
                f"{name} {version}" for name, version in package_versions().items() if name != "json_format"
            ),
            **values,
        )
    )


def _file(name: str) -> str:
    return (importlib.resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> object:
    """Return a text with control characters escaped, which no page may have; markup of ours as it is."""
    return value if isinstance(value, Markup) else printable(value)


def _model(report: ReportRecord, error: str | None, anchor: str) -> dict[str, Any]:
    """Return what the template shows of a model."""
    rows = f"{anchor}-n"
    report.priced_decisions()
    links = {row.name: f"{rows}{index}" for index, row in enumerate(report.decisions)}
    names = [(precision, precision_name(precision, report)) for precision in KINDS]
    outputs = outputs_worst_first(report.outputs.values())
    device, low = report.device or "the device", precision_name("low", report)
    to = "" if report.is_copy else f" {report.dtype}, {target_words(report)},"
    return {
        "anchor": anchor,
        "report": report,
        "error": error,
        "target": "nothing written" if report.destination is None or error else report.destination,
        "asked": f"{report.asked},{to} opset {_before_after(*report.opset)}, {report.seconds:.1f} s",
        "tone": "bad" if error else tone_of(report.verdict_word),
        "headline": headline(report),
        "predicted_from": report.predicted_from,
        "engine": "" if report.engine is None else engine_words(report.engine),
        "slower": _capital(slower_words(report)),
        "tiles": _tiles(report),
        "outputs": sections.outputs_table(outputs),
        "error_chart": _drawn(error_chart(outputs)) if any(map(has_floats, outputs)) else "",
        "frontier": sections.frontier_table(report),
        "frontier_chart": _drawn(frontier_chart(report.frontier, low)) if report.frontier else "",
        "frontier_words": _FRONTIER.format(device=device),
        "sources": sections.linked(sections.sources_table(report), links),
        "sources_words": _SOURCES,
        "costly": sections.linked(sections.costly_table(report), links),
        "costly_words": _COSTLY.format(device=device),
        "times": sections.times_table(report),
        "times_words": _TIMES.format(device=device),
        "precisions": names,
        "operator_chart": _drawn(operator_chart(report)),
        "missing": sorted(report.missing_kernels.items(), key=lambda item: (-item[1], item[0])),
        "states": sections.states_table(report),
        "steps": sections.steps_table(report),
        "steps_words": "" if report.steps is None else training_words(report.steps),
        "why": sections.reasons_table(report),
        "notes": remarks(report),
        "casts": sections.linked(sections.linked(sections.casts_table(report), links, 2), links, 3),
        "nodes": sections.nodes_table(report, rows),
        "nodes_words": _nodes_words(report),
        "levels": levels_of(report, f"{anchor}-"),
        "has_errors": any(row.error for row in report.decisions),
        "kinds": [*names[:2], ("cast", "cast"), names[2]],
        "heats": heat_names(HEATS),
    }


def _nodes_words(report: ReportRecord) -> str:
    """Explain what in the table of nodes does not explain itself."""
    words = [_ATTRIBUTES] if any(row.attributes for row in report.decisions) else []
    if any(row.histogram for row in report.decisions):
        words.append(_MAGNITUDES.format(low=report.dtype))
    return " ".join(words)


def heat_names(heats: Heats) -> list[tuple[str, str]]:
    """Return the class of each colour of a graph, and what it means."""
    names = [f"from {name} on" for _, name in heats]
    return [(f"e{len(heats) + 1 - index}", name) for index, name in enumerate([*names, "less"])]


def _drawn(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704  the chart has escaped the names in it


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _before_after(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} → {after}"


def _tiles(report: ReportRecord) -> list[tuple[str, str]]:
    choice = report.low_nodes + report.high_nodes
    share = f"{report.low_nodes / choice:.0%}" if choice else "-"
    tiles = [
        (share, f"of {choice} float nodes are {precision_name('low', report)}"),
        (str(report.casts), f"casts inserted, {report.casts_removed} removed"),
        (human_bytes(report.weight_bytes[1]), f"of weights, was {human_bytes(report.weight_bytes[0])}"),
    ]
    if report.file_bytes[1] is not None:
        tiles.append((human_bytes(report.file_bytes[1]), f"on disk, was {human_bytes(report.file_bytes[0])}"))
    before, after = report.predicted_ms
    if before is not None and after:
        slower = after > before
        times = f"{(after / before if slower else before / after):.3g}x"
        tiles.append((times, f"as {'slow' if slower else 'fast'} as float32, predicted on {report.device}"))
    floats = [output for output in outputs_worst_first(report.outputs.values()) if has_floats(output)]
    if floats:
        tiles.append((percent(floats[0].relative), "relative error of the worst output"))
    return tiles
