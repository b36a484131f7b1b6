"""mkdocs' hooks for the site: pages from the repository's root, and links that leave `docs/`.

The pages must read well in the repository too, so they link to its files. The site has pages only: a link to a page in
the root leads to its copy, and of any other link out of `docs/` the text stays.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOT_PAGES = {name: name.lower() for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
"""File in the root -> its page on the site."""
_INSTEAD = {**ROOT_PAGES, "README.md": "index.md"}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for name, page in ROOT_PAGES.items():
        if (ROOT / name).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Return the page's text with links that lead somewhere on the site."""
    source = pathlib.Path(page.file.abs_src_path).relative_to(ROOT)
    return _LINK.sub(lambda link: _on_site(link, source, page.file.src_uri, files), markdown)


def _on_site(link: re.Match[str], source: pathlib.Path, here: str, files: Files) -> str:
    if "://" in link["target"]:
        return link[0]
    target = posixpath.normpath(posixpath.join(source.parent.as_posix(), link["target"]))
    there = _INSTEAD.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
    page = files.get_file_from_path(there)
    if page and not page.inclusion.is_excluded():
        return f"[{link['text']}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{link['anchor'] or ''})"
    if target.startswith("docs/") and target.endswith(".md"):
        return link[0]  # mkdocs says that it is not there
    return link["text"]
