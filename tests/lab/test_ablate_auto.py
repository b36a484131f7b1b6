"""The lab program that switches the heuristics of level auto off: its switches exist, and its table counts."""

import importlib

import pytest

import ablate_auto


@pytest.mark.parametrize("heuristic", ablate_auto.HEURISTICS)
def test_what_is_switched_off_exists_and_comes_back(heuristic):
    def values():
        for module, path, _ in ablate_auto.HEURISTICS[heuristic]:
            owner = importlib.import_module(module)
            for name in path.split("."):
                owner = getattr(owner, name)
            yield owner

    before = list(values())
    with ablate_auto.switched(ablate_auto.HEURISTICS[heuristic]):
        assert list(values()) == [instead for _, _, instead in ablate_auto.HEURISTICS[heuristic]]
    assert list(values()) == before


def test_the_table_sets_answers_beside_those_with_everything_on():
    def record(off, share, low, excess, runs):
        case = {"model": "a", "dtype": "float16", "prefer": "size", "share": share, "off": off, "searched": True}
        return {**case, "low": low, "excess": excess, "runs": runs, "seconds": 1.0, "run_seconds": 3.0}

    repair = "the last repair"
    records = [
        record(ablate_auto.ALL, 0.5, 10, 0.9, 4),
        record(ablate_auto.ALL, 0.1, 10, 0.9, 4),
        record(repair, 0.5, 8, 0.9, 2),
        record(repair, 0.1, 11, None, 4),
    ]
    rows = ablate_auto.table(records)
    assert rows[0] == "2 cases of 1 models were searched."
    assert rows[-1] == f"| {repair} | 95.0% | 1 | 1 | 1 | 75.0% | 100.0% | 100.0% |"
