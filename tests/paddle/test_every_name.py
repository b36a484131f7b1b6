"""Every name of the pages has a test of its values, and one of its gradient, or a reason for having none."""

import functools
import re
import tomllib

import pytest

import paddle_names

pytest.importorskip("torch", reason="torch, the oracle of the tables, is not installed")

from tests.paddle.every_name import HERE, used_by_tables  # imports the tables

TABLE = tomllib.loads((HERE / "every_name.toml").read_text(encoding="utf-8"))


def _names(rows):
    return [name for listed in rows.values() for name in listed.split()]


PAGE_NAMES = paddle_names.known_names(paddle_names.PAGE.read_text(encoding="utf-8"))
SECTIONS = {
    section: [name for name in names if name in paddle_names.handed_out(section)]
    for section, names in PAGE_NAMES.items()
}
SECTIONS |= {
    section: here
    for section, (here, _) in paddle_names.layer_names(paddle_names.LAYERS_PAGE.read_text(encoding="utf-8")).items()
}
OF_NUMBERS = [*paddle_names.SECTIONS, "nn"]
"""Sections whose names have gradients; the others' are classes of programs, optimizers and data."""


@pytest.mark.parametrize("section", SECTIONS)
def test_each_name_is_computed_by_a_row_or_tested_elsewhere(section):
    values, _ = used_by_tables()
    without = {name for name in SECTIONS[section] if section not in OF_NUMBERS or not values.has(section, name)}
    assert without == set(_names(TABLE["tested"].get(section, {})))


@functools.cache
def _words(file):
    return set(re.findall(r"\w+", (HERE.parent / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("section", TABLE["tested"])
def test_what_is_tested_elsewhere_is_found_there(section):
    for file, listed in TABLE["tested"][section].items():
        assert set(listed.split()) <= _words(file), file
    names = _names(TABLE["tested"][section])
    assert len(names) == len(set(names))


def test_each_name_that_rows_compute_has_a_gradient_or_a_reason_for_having_none():
    values, gradients = used_by_tables()
    without = {
        name
        for section in OF_NUMBERS
        for name in SECTIONS[section]
        if values.has(section, name) and not gradients.has(section, name)
    }
    assert without == set(_names(TABLE["no_gradient"]))


def test_a_name_without_a_row_is_seen():
    values, gradients = used_by_tables()
    assert not values.has("paddle", "seed")
    assert values.has("Tensor", "mul_")
    assert values.has("linalg", "matrix_rank")
    assert not gradients.has("linalg", "matrix_rank")
