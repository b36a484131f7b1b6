"""The site in a browser: on a phone and on a desktop, light and dark, for screen readers; and its search.

Screenshots go to AMP_SCREENSHOTS, or to pytest's own temporary folder.
"""

import functools
import http.server
import os
import pathlib
import threading

import pytest

pytestmark = pytest.mark.slow

WIDTHS = {"phone": 360, "desktop": 1440}
PAGES = [
    "index",
    "tutorial",
    "reference/command",
    "reference/python",
    "reference/lists",
    "benchmarks/training",
    "training/index",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Serve the site; return where."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(browser, address):
    """Return a function that opens a page; the test fails if that logs a fault or fetches from elsewhere."""
    contexts, faults = [], []

    def open_page(name, width=1440, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith(address) else faults.append(request.url))
        tab.goto(f"{address}/{name}.html", wait_until="networkidle")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert [fault for fault in faults if not fault.startswith("data:")] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_screen(opened, width, scheme, tmp_path):
    folder = pathlib.Path(os.environ.get("AMP_SCREENSHOTS", tmp_path))
    for name in PAGES:
        tab = opened(name, WIDTHS[width], color_scheme=scheme)
        tab.screenshot(path=folder / f"site-{name.replace('/', '-')}-{width}-{scheme}.png")
        assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width], name
        dark = tab.evaluate("document.body.dataset.mdColorScheme") == "slate"
        assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, axe, width, scheme):
    faults = {}
    for name in PAGES:
        tab = opened(name, WIDTHS[width], color_scheme=scheme, bypass_csp=True)
        tab.evaluate(axe)
        rules = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        serious = [rule for rule in rules if rule["impact"] in {"serious", "critical"}]
        faults |= {f"{name}: {rule['id']}": [node["html"][:160] for node in rule["nodes"][:3]] for rule in serious}
    assert faults == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_search_finds_pages(opened, width):
    tab = opened("index", WIDTHS[width])
    if width == "phone":
        tab.locator("label.md-header__button[for=__search]").click()
    box = tab.locator("input.md-search__input")
    box.click()
    box.press_sequentially("master-weights")
    link = tab.locator(".md-search-result__link").first
    link.wait_for()
    link.click()
    tab.wait_for_url("**/*.html*h=*")


def test_the_colours_can_be_switched_and_stay(opened, address):
    tab = opened("index", color_scheme="light")
    tab.locator("form[data-md-component=palette] label:visible").click()
    tab.wait_for_function("document.body.dataset.mdColorScheme == 'slate'")
    tab.goto(f"{address}/tutorial.html", wait_until="networkidle")
    assert tab.evaluate("document.body.dataset.mdColorScheme") == "slate"
