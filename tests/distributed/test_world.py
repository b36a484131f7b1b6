"""Messages between ranks, and who is lost: two ranks in this process, with a store of torch between them."""

import datetime as dt
import os
import subprocess
import sys
import threading
import time

import pytest

from amp_transpiler.errors import DistributedError
from amp_transpiler.runtime.distributed.world import Member, World
from amp_transpiler.runtime.places import CPUPlace

torch = pytest.importorskip("torch", reason="the ranks meet at a store of torch: install the extra [distributed]")
distributed = pytest.importorskip("torch.distributed")


@pytest.fixture
def worlds(request):
    """Two ranks; a test may say how many seconds of silence they allow."""
    seconds = getattr(request, "param", 10.0)
    limit = dt.timedelta(seconds=20)
    store = distributed.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=limit, wait_for_workers=False)
    pair = together(lambda rank: World(rank, 2, CPUPlace(), store.clone(), seconds, "gloo"))
    yield pair
    for world in reversed(pair):
        world.close()


def together(act):
    """Let both ranks do something at the same time; return the results or raise the first error."""
    results = [None, None]

    def run(rank):
        try:
            results[rank] = act(rank)
        except DistributedError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_texts_are_gathered_and_handed_out(worlds):
    assert together(lambda rank: worlds[rank].gather(f"from {rank}")) == [["from 0", "from 1"]] * 2
    assert together(lambda rank: worlds[rank].from_first("hello" if rank == 0 else None)) == ["hello"] * 2
    assert worlds[0].members[1].process == os.getpid()


@pytest.mark.parametrize("worlds", [2.0], indirect=True)
def test_a_rank_that_falls_silent_is_named(worlds):
    worlds[1]._ended.set()  # no more heartbeats
    with pytest.raises(
        DistributedError, match=r"rank 0 cannot go on: rank 1 \(process .*was not heard of for"
    ) as error:
        worlds[0].gather("")
    assert "start all ranks again with torchrun, from the last checkpoint" in str(error.value)


def test_a_rank_that_was_stopped_for_a_while_blames_nobody(worlds, monkeypatch):
    waiting = threading.Thread(target=worlds[0].gather, args=("from 0",))
    waiting.start()
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1000)
    assert worlds[0]._missing(worlds[0].timeout) == {}
    assert worlds[1].gather("from 1") == ["from 0", "from 1"]
    waiting.join()
    assert not worlds[0].is_broken


def test_a_rank_that_has_left_is_named(worlds):
    worlds[1].close()
    with pytest.raises(DistributedError, match=r"rank 0 cannot go on: rank 1 \(process .* has ended"):
        worlds[0].gather("")


def test_what_a_rank_said_before_it_left_is_heard(worlds):
    assert together(lambda rank: worlds[rank].gather(f"from {rank}"))[0] == ["from 0", "from 1"]
    worlds[0]._interval = 30.0  # it does not look whether the other is alive
    leaving = threading.Thread(target=worlds[0].close)
    worlds[0]._store.set("message/3/0", "the last word")
    leaving.start()
    assert worlds[1].from_first(None) == "the last word"
    assert leaving.is_alive()  # the meeting point stays until the other rank has left
    worlds[1].close()
    leaving.join()


def test_the_error_of_another_rank_is_told(worlds):
    worlds[1].fail(ValueError("a bad feed"))
    with pytest.raises(DistributedError, match=r"rank 1 .* has failed: ValueError: a bad feed"):
        worlds[0].from_first(None) if worlds[0].rank else worlds[0].gather("")


class Slow:
    """A store whose texts are under way until its next question is answered, as those of torch may be."""

    def __init__(self, store):
        self._store, self._under_way = store, []

    def set(self, key, text):
        self._under_way.append((key, text))

    def check(self, keys):
        while self._under_way:
            self._store.set(*self._under_way.pop(0))
        return self._store.check(keys)


def test_the_others_can_read_an_error_when_fail_returns(worlds):
    worlds[1]._store = Slow(worlds[1]._store)
    worlds[1].fail(ValueError("a bad feed"))
    assert worlds[0]._missing(20.0) == {1: "has failed: ValueError: a bad feed"}


def test_a_rank_that_goes_on_after_its_error_is_not_lost(worlds):
    worlds[1].fail(ValueError("a bad feed"))
    assert "has failed: ValueError: a bad feed" in worlds[0]._missing(20.0)[1]
    waiting = threading.Thread(target=worlds[1].gather, args=("from 1",))
    waiting.start()
    while not worlds[0]._store.check(["message/2/1"]):
        pass
    assert worlds[0].gather("from 0") == ["from 0", "from 1"]
    waiting.join()
    assert worlds[0]._missing(20.0) == {}


@pytest.mark.slow
@pytest.mark.parametrize("worlds", [2.0], indirect=True)
def test_a_rank_that_takes_fewer_steps_is_named(worlds):
    worlds[0].step = 7
    with pytest.raises(DistributedError, match=r"rank 1 .* is at step 0, this one at 7"):
        worlds[0].gather("")


def test_an_ended_process_is_gone_and_this_one_is_not():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        ended = Member(1, os.uname().nodename, child.pid)
        child.wait()
    assert ended.is_gone()
    assert not Member(0, os.uname().nodename, os.getpid()).is_gone()
    assert not Member(2, "another-host", ended.process).is_gone()
