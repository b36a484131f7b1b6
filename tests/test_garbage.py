"""Rest for the garbage collector."""

import gc

import pytest

from amp_transpiler.garbage import Frozen, collection_paused


@pytest.fixture(autouse=True)
def nothing_is_frozen(monkeypatch):
    """Have nothing frozen, as in a program that leaves the garbage collector as it is; conftest.py froze all tests."""
    monkeypatch.setattr(Frozen, "seen", False)
    gc.unfreeze()
    yield
    gc.freeze()


def young():
    return {id(item) for generation in (0, 1) for item in gc.get_objects(generation=generation)}


def test_collection_is_paused_and_goes_on():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.slow
def test_what_stays_is_old_at_once():
    for stays in (False, True):
        gc.collect()  # no collection of more than the youngest objects is due
        with collection_paused(stays=stays):
            lists = [[] for _ in range(5000)]
            gc.disable()
        gc.disable()
        try:
            assert (id(lists) in young()) != stays
        finally:
            gc.enable()


def test_frozen_objects_stay_frozen():
    mine = []
    gc.freeze()
    try:
        with collection_paused(stays=True):
            pass
        assert id(mine) not in {id(item) for item in gc.get_objects()}
    finally:
        gc.unfreeze()


def test_frozen_objects_are_counted_once(monkeypatch):
    """Python counts them one by one: a server that froze millions would wait at every call."""
    counted = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(None) or 1_000_000)
    for _ in range(3):
        with collection_paused(stays=True):
            pass
    assert len(counted) == 1
