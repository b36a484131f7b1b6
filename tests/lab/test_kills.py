"""A writer that is killed leaves the old whole file or the new whole one, and the next one sweeps what it left."""

from __future__ import annotations

import os
import random
import sys

import pytest

import kill_test

pytestmark = pytest.mark.skipif(not hasattr(sys, "addaudithook") or sys.platform == "win32", reason="needs fork")


@pytest.fixture(params=kill_test.CASES)
def bench(request, tmp_path):
    kill_test.make_sources(tmp_path / "sources", 160)
    return kill_test.Bench(request.param, tmp_path, tmp_path / "sources")


@pytest.mark.slow
def test_a_kill_before_any_change_of_a_file(bench):
    assert kill_test.audited_kills(bench) > 5
    assert bench.tally.faults == []
    assert bench.tally.old > 0
    assert bench.tally.new > 0
    assert bench.tally.swept > 0


def test_two_writers_never_mix(tmp_path):
    """Both write the same file again and again; whoever comes last has it, whole, with nothing of the other's."""
    kill_test.make_sources(tmp_path / "sources", 160)
    bench = kill_test.Bench("external data", tmp_path, tmp_path / "sources")

    def writing(version):
        for _ in range(5):
            bench.write(version)

    children = [kill_test.forked(lambda version=version: writing(version)) for version in (0, 1)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    version = bench.digests.index(bench.case.read(bench.output))
    assert bench.listing() == bench.clean[version]


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    kill_test.make_sources(tmp_path / "sources", 512)
    for name in kill_test.CASES:
        bench = kill_test.Bench(name, tmp_path, tmp_path / "sources")
        kill_test.random_kills(bench, 8, random.Random(0), sweep_every=4)
        assert bench.tally.faults == []
