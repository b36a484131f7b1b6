"""The topics of errors as one HTML page of the package itself, so that links in messages lead to something."""

from __future__ import annotations

import re
from html import escape

from amp_transpiler.errors import topics

__all__ = ["shipped"]

_HEAD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Errors of amp_transpiler</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
h2:target { background: #ffd08a; color: #000; }
</style>
<h1>Errors of amp_transpiler</h1>
<p>An error says what is wrong, where, and what to do. Here is the usual cause of each kind, and the remedy.</p>
<ul>
"""


def shipped() -> str:
    """Return the page."""
    lines = [f'<li><a href="#{topic["anchor"]}">{escape(topic["title"])}</a></li>' for topic in topics()]
    parts = [_HEAD, "\n".join(lines), "\n</ul>\n"]
    parts += [
        f'<h2 id="{topic["anchor"]}">{escape(topic["title"])}</h2>\n'
        f"<p>{_text(topic['cause'])}</p>\n<p><b>What to do:</b> {_text(topic['remedy'])}</p>\n"
        for topic in topics()
    ]
    return "".join(parts)


def _text(markdown: str) -> str:
    """Return a sentence in HTML: code as code, and of links the text, since their pages are not in the package."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(words, quote=False))
