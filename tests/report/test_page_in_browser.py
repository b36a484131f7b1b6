"""The page in a browser: with and without its script, on a phone, in the dark, without a mouse, and for screen readers.

Screenshots go to AMP_SCREENSHOTS, or to pytest's own temporary folder.
"""

import os
import pathlib

import pytest

from amp_transpiler.report.as_html import page
from amp_transpiler.report.diagnosis_page import diagnosis_page
from amp_transpiler.report.difference import difference_page
from amp_transpiler.report.picture import graphs_of
from amp_transpiler.verification.difference import compare_models
from tests.report.diagnoses import of_many_nodes
from tests.report.large_report import deep_model, large_report

pytestmark = pytest.mark.slow

WIDTHS = {"phone": 360, "tablet": 820, "desktop": 1440}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages of models: of some hundred nodes, and of 2000."""
    folder = tmp_path_factory.mktemp("pages")
    small = large_report(8)
    texts = {
        "page": page([(small, None)]),
        "large": page([(large_report(40), None)]),
        "two": page([(large_report(1), None), (large_report(1), "the check failed")]),
        "diff": difference_page(compare_models(deep_model(1), small.program, run=False)),
        "debug": diagnosis_page(of_many_nodes(40), graphs_of(small.program)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, files):
    """Return a function that opens a page; the test fails if that logs or fetches anything."""
    contexts, faults = [], []

    def open_page(width=1200, height=900, name="page", **options):
        address = (files / f"{name}.html").as_uri()
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: faults.append(message.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith(address) else faults.append(request.url))
        tab.goto(address)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def open_nodes(tab):
    part = tab.locator("details.part").filter(has_text="Every node")
    part.locator("summary").click()
    return part


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen_but_what_scrolls(opened, width, scheme, tmp_path):
    tab = opened(WIDTHS[width], color_scheme=scheme, name="large")
    folder = pathlib.Path(os.environ.get("AMP_SCREENSHOTS", tmp_path))
    picture = folder / f"report-{width}-{scheme}.png"
    tab.screenshot(path=picture, full_page=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(17, 22, 29)") == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["phone", "desktop"])
def test_axe_finds_nothing(opened, axe, scheme, width):
    tab = opened(WIDTHS[width], color_scheme=scheme, bypass_csp=True)
    tab.locator(".level .level > summary").first.click()
    tab.locator("details.part").first.locator("summary").click()
    open_nodes(tab).locator("input[type=search]").fill("layer.1/block.1")  # axe looks long at many rows
    tab.evaluate(axe)
    audit = tab.evaluate("axe.run({resultTypes: ['violations']})")
    faults = [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in audit["violations"]]
    assert faults == []


@pytest.mark.parametrize("name", ["two", "diff", "debug"])
@pytest.mark.parametrize("width", ["phone", "desktop"])
def test_axe_finds_nothing_on_the_other_pages(opened, axe, name, width):
    tab = opened(WIDTHS[width], name=name, bypass_csp=True)
    for part in tab.locator("details.part > summary").all():
        part.click()
    tab.evaluate(axe)
    audit = tab.evaluate("axe.run({resultTypes: ['violations']})")
    faults = [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in audit["violations"]]
    assert faults == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]


def test_colours_of_one_model_are_its_own(opened):
    tab = opened(name="two")
    tab.locator(".by-error").first.check()
    assert [legend.is_visible() for legend in tab.locator(".of-error").all()] == [True, False]


def test_tables_sort_by_number_both_ways_and_back(opened):
    tab = opened()
    part = open_nodes(tab)
    names = part.locator("tbody tr td:nth-child(3)")
    before = names.all_inner_texts()
    head = part.locator("th").filter(has_text="moves")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    sizes = [
        float(cell)
        for cell in part.locator("tbody td:nth-child(8)").evaluate_all("cells => cells.map(c => c.dataset.k)")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") is None
    assert names.all_inner_texts() == before


def test_tables_filter_by_words_and_precision(opened):
    tab = opened()
    part = open_nodes(tab)
    rows = part.locator("tbody tr:visible")
    total = rows.count()
    part.locator("input[type=search]").fill("LAYER.6/ softmax")
    assert rows.count() == 5
    assert part.locator("output").inner_text() == f"5 of {total}"
    part.locator("select").select_option("float16")
    assert rows.count() == 0
    part.locator("input[type=search]").fill("")
    assert 0 < rows.count() < total
    assert set(part.locator("tbody tr:visible td:first-child").all_inner_texts()) == {"float16"}


@pytest.mark.parametrize("script", [True, False])
def test_a_link_in_the_picture_opens_a_scope_and_one_of_a_node_its_row(opened, script):
    tab = opened(java_script_enabled=script)
    outer = tab.locator(".picture > .level > .inner > .wide")
    link = outer.locator("svg a").filter(has_text="layer.3").first
    scope = link.get_attribute("href")
    assert not tab.locator(scope).is_visible()
    link.click()
    assert tab.locator(scope).is_visible()
    inner = tab.locator(scope).locator("svg a").first
    inner_target = inner.get_attribute("href")
    inner.click()
    assert tab.locator(inner_target).is_visible()
    node = tab.locator(inner_target).locator("svg a").filter(has_text="Softmax").first
    row = node.get_attribute("href")
    node.click()
    assert tab.locator(row).is_visible()
    assert "Softmax" in tab.locator(row).inner_text()


def test_a_link_finds_a_row_that_the_filter_hides(opened):
    tab = opened()
    part = open_nodes(tab)
    part.locator("input[type=search]").fill("nothing has this name")
    assert part.locator("tbody tr:visible").count() == 0
    link = tab.locator("section").filter(has_text="What adds most").locator("td a").first
    link.click()
    assert tab.locator(link.get_attribute("href")).is_visible()


def test_without_a_script_all_is_there_and_nothing_promises_more(opened):
    tab = opened(java_script_enabled=False)
    part = open_nodes(tab)
    assert part.locator("tbody tr:visible").count() == 401
    assert not part.locator(".filter").is_visible()
    assert tab.locator("th button").count() == 0
    tab.locator(".by-error").check()
    assert tab.locator(".of-error").is_visible()


def test_everything_can_be_reached_by_keyboard(opened):
    tab = opened()
    tab.keyboard.press("Tab")
    assert tab.locator(".skip").evaluate("link => document.activeElement === link")
    tab.keyboard.press("Enter")
    part = tab.locator("details.part").filter(has_text="Every node")
    part.locator("summary").focus()
    tab.keyboard.press("Enter")
    assert part.get_attribute("open") is not None
    tab.keyboard.press("Tab")
    tab.keyboard.type("layer.6/ softmax")
    assert part.locator("tbody tr:visible").count() == 5
    for _ in range(3):
        tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.tagName") == "BUTTON"
    tab.keyboard.press("Enter")
    assert part.locator("th").first.get_attribute("aria-sort") == "ascending"


def test_boxes_take_the_colour_that_was_asked_for(opened):
    tab = opened()
    box = tab.locator(".picture > .level > .inner > .wide .box.e1, .box.e2, .box.e3").first.locator("rect").first
    colour = "rect => getComputedStyle(rect).fill"
    before = box.evaluate(colour)
    tab.locator(".by-error").check()
    assert box.evaluate(colour) != before


def test_labels_can_be_read_at_two_thousand_nodes(opened):
    tab = opened(name="large")
    outer = tab.locator(".picture > .level > .inner > .wide")
    for text in outer.locator("svg text:not(.small)").all():
        assert text.evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 12
    assert outer.locator("svg .box").count() <= 42
    boxes = [box.bounding_box() for box in outer.locator("svg .box > rect:first-of-type").all()]
    for index, box in enumerate(boxes):
        for other in boxes[:index]:
            apart = box["x"] >= other["x"] + other["width"] or other["x"] >= box["x"] + box["width"]
            assert apart or abs(box["y"] - other["y"]) >= box["height"]


def pictured(tab):
    """Return the frame of the outermost graph, and the form of its tools."""
    picture = tab.locator(".picture").first
    return picture.locator("> .level > .inner > .wide"), picture.locator(".tools")


def test_the_graph_zooms_by_button_and_by_wheel_and_back(opened):
    tab = opened(name="large")
    frame, tools = pictured(tab)
    width = "frame => frame.querySelector('svg').getBoundingClientRect().width"
    natural = frame.evaluate(width)
    tools.get_by_text("+", exact=True).click()
    assert frame.evaluate(width) == pytest.approx(1.25 * natural, rel=0.01)
    frame.hover()
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -100)
    tab.wait_for_function(
        "w => document.querySelector('.picture svg').getBoundingClientRect().width > w", arg=1.5 * natural
    )
    tab.mouse.wheel(0, 100)
    tab.keyboard.up("Control")
    tab.wait_for_function(
        "w => document.querySelector('.picture svg').getBoundingClientRect().width < w", arg=1.3 * natural
    )
    tools.get_by_text("100%").click()
    assert frame.evaluate(width) == pytest.approx(natural, rel=0.01)


def test_the_graph_moves_as_it_is_dragged_and_a_drag_follows_no_link(opened):
    tab = opened(name="large", width=600)
    frame, tools = pictured(tab)
    for _ in range(4):
        tools.get_by_text("+", exact=True).click()
    link = frame.locator("svg a").nth(5)
    link.evaluate("link => link.scrollIntoView({ block: 'center', inline: 'center' })")
    before = frame.evaluate("frame => [frame.scrollLeft, frame.scrollTop]")
    box, address = link.bounding_box(), tab.url
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x - 20, y - 30, steps=4)
    tab.mouse.up()
    moved = frame.evaluate("frame => [frame.scrollLeft, frame.scrollTop]")
    assert moved != before
    assert tab.url == address
    link.click()
    assert tab.url != address


def test_the_graph_is_searched_in_folded_scopes_too(opened):
    tab = opened()
    frame, tools = pictured(tab)
    tools.locator("input[type=search]").fill("layer.6/ softmax")
    hits = tab.locator(".picture .box.found")
    assert hits.count() > 0
    assert all("Softmax" in text for text in hits.all_text_contents())
    assert hits.first.is_visible()
    assert tools.locator("output").inner_text() == f"{hits.count()} found"
    tools.locator("input[type=search]").fill("no box has this")
    assert (hits.count(), tools.locator("output").inner_text()) == (0, "0 found")
    tools.locator("input[type=search]").fill("")
    assert tools.locator("output").inner_text() == ""
    assert frame.is_visible()
