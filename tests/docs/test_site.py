"""The documentation site: it is built strictly, complete, and needs nothing from elsewhere."""

import json
import re

import pytest

pytestmark = pytest.mark.slow  # as the tests in a browser, which share the site


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\s\">]*)")
    foreign = {
        (path.name, address) for path in site.rglob("*.html") for address in loads.findall(path.read_text("utf-8"))
    }
    assert foreign == set()
    for path in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*", path.read_text("utf-8")) == [], path.name


def test_the_search_knows_every_page(site):
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    known = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert known == pages


def test_the_reference_has_signatures_and_arguments(site):
    page = (site / "reference/python.html").read_text("utf-8")
    assert 'id="amp_transpiler.transpile"' in page
    text = re.sub(r"<[^>]+>", "", page)
    assert "tolerance" in text
    assert ":::" not in text.replace("begin with :::", "")
