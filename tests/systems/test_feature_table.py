"""Every cell of the feature table that says yes has its test."""

import importlib
import pathlib

import pytest

from tests.systems.feature_table import SYSTEMS, cells, says_yes


def shown():
    """(feature, system) -> names of the tests that show it."""
    shown_rows = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("test_features_*.py")):
        module = importlib.import_module(f"tests.systems.{path.stem}")
        for name, test in vars(module).items():
            for key in getattr(test, "cells", ()):
                shown_rows.setdefault(key, []).append(f"{path.stem}::{name}")
    return shown_rows


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_cell_that_says_yes_has_a_test(system):
    tests = shown()
    missing = [feature for (feature, of), said in cells().items() if of == system and says_yes(said)]
    assert [feature for feature in missing if (feature, system) not in tests] == []


def test_no_test_claims_a_cell_that_says_no():
    assert [key for key in shown() if not says_yes(cells()[key])] == []
