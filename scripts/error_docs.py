#!/usr/bin/env python3
"""Writes docs/errors.md from the source: the topics of amp_transpiler/error_topics.toml, and the messages of the code.

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

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "errors.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the page")
    what.add_argument("--check", action="store_true", help="exit 1 if the page is out of date")
    what.add_argument("--provoked", metavar="FILE", type=pathlib.Path, help="merge a record of provoked messages")
    arguments = parser.parse_args()
    if arguments.provoked is not None:
        missing = merge(arguments.provoked)
        print(
            "\n".join([*missing, f"{len(missing)} of {len(listed())} messages are provoked by no test that is known"])
        )
        return 0
    before, after = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "", page()
    if arguments.write:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    if before != after:
        print("\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), "is", "should be", lineterm="")))
        print("docs/errors.md does not match the source; run python scripts/error_docs.py --write")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
