"""A block that takes too long is noticed, whatever was watched before; one that does not is left alone."""

import threading
import time

import pytest

from amp_transpiler.child_process.watchdog import Watchdog

LONG, SHORT = 60.0, 0.02


@pytest.fixture
def calls():
    return []


@pytest.fixture
def watchdog(calls):
    called = threading.Event()
    watchdog = Watchdog(lambda: (calls.append(time.monotonic()), called.set()))
    watchdog.called = called
    yield watchdog
    watchdog.close()


@pytest.mark.parametrize(
    "before",
    [[], [LONG], [LONG, LONG], [SHORT], [SHORT, LONG]],
    ids=["nothing before", "after a long limit", "after two", "after a short one", "after both"],
)
def test_a_block_that_takes_too_long_is_noticed(watchdog, calls, before):
    for seconds in before:
        with watchdog.limit(seconds):
            pass
    begin = time.monotonic()
    with watchdog.limit(SHORT):
        assert watchdog.called.wait(LONG)
    assert len(calls) == 1
    assert calls[0] - begin >= SHORT


def test_it_is_called_once_for_a_block_and_again_for_the_next(watchdog, calls):
    for blocks in (1, 2):
        with watchdog.limit(SHORT):
            assert watchdog.called.wait(LONG)
            watchdog.called.clear()
            time.sleep(2 * SHORT)
        assert len(calls) == blocks


def test_a_block_that_ended_in_time_is_not_noticed_later(watchdog, calls):
    for _ in range(3):
        with watchdog.limit(5 * SHORT):
            pass
    time.sleep(10 * SHORT)
    assert calls == []


def test_one_thread_watches_all_blocks_and_ends_with_it(watchdog):
    before, seen = set(threading.enumerate()), set()  # others of the process may end meanwhile
    for _ in range(5):
        with watchdog.limit(LONG):
            seen |= set(threading.enumerate()) - before
    (thread,) = seen
    watchdog.close()
    thread.join(LONG)
    assert not thread.is_alive()


def test_an_error_in_the_block_ends_the_limit(watchdog, calls):
    with pytest.raises(ValueError, match="inside"), watchdog.limit(SHORT):
        raise ValueError("inside")
    time.sleep(3 * SHORT)
    assert calls == []
