"""The program of test_linted.py: shallow training steps of one network at the forms that are named; on stand-ins.

It prints one line of JSON: a form -> its findings by lint.
"""

from __future__ import annotations

import json
import sys

import lints
from programs import linted
from programs.sizes import NETWORKS, shallow


def main() -> None:
    network, *forms = sys.argv[1:]
    reports = {form: lints.findings(linted.step(shallow(NETWORKS[network]), *form.split())) for form in forms}
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
