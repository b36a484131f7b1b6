"""`python -m amp_transpiler` is `amp-transpile`."""

import sys

from amp_transpiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
