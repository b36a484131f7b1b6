#!/usr/bin/env python3
"""Writes docs/errors.md from the source: the topics of amp_transpiler/error_topics.toml, and the messages of the code.

The topics alone are also written into the package, where the links of errors lead: amp_transpiler/errors.html.

    python scripts/error_docs.py --write   # write the page
    python scripts/error_docs.py --check   # change nothing; exit 1 and show the difference if it is out of date
    python scripts/error_docs.py --provoked FILE
                                           # take over which test provokes which message, as recorded with
                                           # pytest -p errors_page.provoked --provoked FILE; print those that none does

Run it after a change of a message.
"""

from __future__ import annotations

import argparse
import difflib
import pathlib
import sys

from errors_page.page import page
from errors_page.provocations import merge
from errors_page.raised import listed
from errors_page.shipped import shipped

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {ROOT / "docs" / "errors.md": page, ROOT / "amp_transpiler" / "errors.html": shipped}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the pages")
    what.add_argument("--check", action="store_true", help="exit 1 if the page is out of date")
    what.add_argument("--provoked", metavar="FILE", type=pathlib.Path, help="merge a record of provoked messages")
    arguments = parser.parse_args()
    if arguments.provoked is not None:
        missing = merge(arguments.provoked)
        print(
            "\n".join([*missing, f"{len(missing)} of {len(listed())} messages are provoked by no test that is known"])
        )
        return 0
    stale = 0
    for path, written in PAGES.items():
        before, after = path.read_text(encoding="utf-8") if path.exists() else "", written()
        if arguments.write:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            stale = 1
            differences = difflib.unified_diff(before.splitlines(), after.splitlines(), "is", "should be", lineterm="")
            print("\n".join(differences))
            print(f"{path.relative_to(ROOT)} does not match the source; run python scripts/error_docs.py --write")
    return stale


if __name__ == "__main__":
    sys.exit(main())
