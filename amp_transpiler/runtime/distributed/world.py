"""`World`: the ranks of a run, small messages between them through the meeting point, and who of them is alive."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import pathlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from amp_transpiler.errors import DistributedError
from amp_transpiler.runtime.places import Place

__all__ = ["Member", "World"]

logger = logging.getLogger(__name__)

_BEATS = 4  # an exchange that failed is put down to ranks that were silent for so many intervals
_POLL = 0.02  # seconds between two looks for a message


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A process of the run: where it is, to name it and to look after it."""

    rank: int
    host: str
    process: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"

    def is_gone(self) -> bool:
        """Whether the process has surely ended: only known of processes on this host."""
        if self.host != socket.gethostname():
            return False
        try:
            status = pathlib.Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return pathlib.Path("/proc/self/stat").exists()
        except ProcessLookupError:  # it ended while it was read
            return True
        return status.rpartition(")")[2].split()[0] in ("Z", "X")  # ended, and its parent has not looked yet


class _Awake:
    """The time for which this process ran. It is read often: between two looks at most `most` seconds count.

    So a process that was stopped for a while does not take the others for lost.
    """

    def __init__(self, most: float) -> None:
        self._most, self._seconds, self._read, self._lock = most, 0.0, time.monotonic(), threading.Lock()

    def seconds(self) -> float:
        """Return the seconds since this was made; any thread may ask."""
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._read, self._most)
            self._read = now
            return self._seconds


class World:
    """The ranks of a run.

    Every rank must call `gather` and `from_first` equally often, in the same order.

    Args:
        rank: this process's number.
        size: how many processes there are.
        place: where this process computes.
        store: the meeting point, a store of `torch.distributed`.
        timeout: seconds after which a rank that does not answer counts as lost.
        backend: the name of what exchanges tensors, for the log.

    Attributes:
        members: the processes by rank.
        step: the number of steps that this rank has taken; sent to the others when one is missing.
        is_broken: whether a rank was lost, so that nothing more can be exchanged.
    """

    def __init__(self, rank: int, size: int, place: Place, store: Any, timeout: float, backend: str) -> None:
        self.rank, self.size, self.place, self.timeout, self.backend = rank, size, place, timeout, backend
        self.step = 0
        self.is_broken = False
        self._store = store
        self._messages = 0
        self._has_failed = False
        self._beats: dict[int, tuple[str, float]] = {}  # rank -> its last heartbeat, and when it was first seen
        self._interval = max(0.05, min(1.0, timeout / 10))
        self._awake = _Awake(2 * self._interval)
        self._ended = threading.Event()
        self.members = {rank: Member(rank, socket.gethostname(), os.getpid())}
        self._beating = threading.Thread(target=self._beat, args=(store.clone(),), name="heartbeat", daemon=True)
        self._beating.start()
        mine = self.members[rank]
        for other, text in enumerate(self.gather(f"{mine.process} {mine.host}")):
            process, _, host = text.partition(" ")
            self.members[other] = Member(other, host, int(process))

    def __repr__(self) -> str:
        return f"World(rank {self.rank} of {self.size}, {self.backend}, {self.place})"

    def close(self) -> None:
        """Leave the others. Rank 0, whose process may hold the meeting point, waits until they have left or ended."""
        try:
            self._tell(f"left/{self.rank}", "1")
            ends = time.monotonic() + self.timeout
            while self.rank == 0 and not self.is_broken and time.monotonic() < ends:
                if all(rank in self._left() for rank in range(1, self.size)) or self._missing(self.timeout):
                    break
                time.sleep(_POLL)
        except RuntimeError:
            logger.debug("rank %d leaves when the meeting point is gone", self.rank, exc_info=True)
        self._ended.set()
        self._beating.join()

    # ---- messages ----

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, by rank; every rank calls it.

        Raises:
            DistributedError: a rank is lost, or did not answer in time.
        """
        number = self._next(text)
        return [self._received(number, rank) for rank in range(self.size)]

    def from_first(self, text: str | None) -> str:
        """Return what rank 0 says; every rank calls it, the others with None.

        Raises:
            DistributedError: rank 0 is lost. It may take as long as it wants.
        """
        number = self._next("" if text is None else text)
        return self._received(number, 0, patient=True)

    def _next(self, text: str) -> int:
        self._messages += 1
        try:
            if self._has_failed:  # the error was caught, and this rank goes on
                self._store.set(f"failed/{self.rank}", "")
                self._has_failed = False
            self._store.set(f"message/{self._messages}/{self.rank}", text)
        except RuntimeError as error:
            raise self.lost(error) from error
        return self._messages

    def _received(self, number: int, rank: int, *, patient: bool = False) -> str:
        key, began, looked = f"message/{number}/{rank}", self._awake.seconds(), time.monotonic()
        try:
            while not self._store.check([key]):
                now = time.monotonic()
                if now - looked > self._interval:
                    looked = now
                    if missing := self._missing(self.timeout):  # a rank that compiles may be silent for a while
                        raise self._broken(missing)
                    if rank in self._left() and not self._store.check([key]):
                        raise self._broken({rank: "has ended"})
                if not patient and self._awake.seconds() - began > self.timeout:
                    raise self.lost(None)
                time.sleep(_POLL)
            return str(self._store.get(key), "utf-8")
        except RuntimeError as error:
            raise self.lost(error) from error

    # ---- life and death ----

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one stops; its next message takes that back."""
        self._has_failed = True
        try:
            self._tell(f"failed/{self.rank}", f"{type(error).__name__}: {error}")
        except RuntimeError:
            logger.debug("rank %d could not tell the others", self.rank, exc_info=True)  # its own error is raised

    def lost(self, error: BaseException | None) -> DistributedError:
        """Return an error that names the ranks because of which an exchange failed; it takes a few heartbeats.

        Args:
            error: the error of the exchange; None if it took too long.
        """
        ends = time.monotonic() + (_BEATS + 1) * self._interval
        while True:
            missing = self._missing(_BEATS * self._interval) or self._left()
            if missing or time.monotonic() > ends:
                break
            time.sleep(self._interval / 4)
        if not missing:
            others = {rank: step for rank, step in self._steps().items() if step != str(self.step)}
            missing = {rank: f"is at step {step}, this one at {self.step}" for rank, step in others.items()}
        return self._broken(missing, error)

    def _broken(self, missing: Mapping[int, str], error: BaseException | None = None) -> DistributedError:
        self.is_broken = True
        named = "; ".join(f"{self.members.get(rank, f'rank {rank}')} {why}" for rank, why in missing.items())
        cause = "" if error is None else f" ({' '.join(str(error).split())[:160]})"
        if not named:
            named = f"no answer within {self.timeout:g} s, though all ranks are alive: one may take fewer steps{cause}"
        return DistributedError(
            f"rank {self.rank} cannot go on: {named}. Nothing of this step was kept. Look at the log of that rank, "
            "then start all ranks again with torchrun, from the last checkpoint"
        )

    def _missing(self, patience: float) -> dict[int, str]:
        """Return the ranks that are lost, and how; those that were silent for `patience` seconds count."""
        gone = self._gone()  # looked up first: a rank reports before it ends
        try:
            failed = {rank: _text(self._store, f"failed/{rank}") for rank in self.members if rank != self.rank}
        except RuntimeError:
            return self._gone() or {0: "or the torchrun agent that holds the meeting point does not answer"}
        lost = gone | {rank: f"has failed: {why}" for rank, why in failed.items() if why}
        now = self._awake.seconds()
        silent = {rank: now - since for rank, (_, since) in dict(self._beats).items() if now - since > patience}
        return {rank: f"was not heard of for {seconds:.0f} s" for rank, seconds in silent.items()} | lost

    def _gone(self) -> dict[int, str]:
        """Return the ranks whose processes have ended, as far as this host knows."""
        return {rank: "has ended" for rank, member in self.members.items() if rank != self.rank and member.is_gone()}

    def _left(self) -> dict[int, str]:
        """Return the other ranks that have left, whatever they left undone."""
        try:
            return {r: "has ended" for r in range(self.size) if r != self.rank and _text(self._store, f"left/{r}")}
        except RuntimeError:
            return {}

    def _steps(self) -> dict[int, str]:
        try:
            texts = {rank: _text(self._store, f"alive/{rank}") for rank in self.members if rank != self.rank}
        except RuntimeError:
            return {}
        return {rank: text.rpartition(" ")[2] for rank, text in texts.items() if text}

    def _tell(self, key: str, text: str) -> None:
        """Set a key; return when every rank can read it. `set` returns before the meeting point has the text."""
        self._store.set(key, text)
        self._store.check([key])  # the answer comes after what this rank has sent before

    def _beat(self, store: Any) -> None:
        """Tell the others at regular times that this rank is alive, and look when each of them did so last."""
        for count in itertools.count(1):
            try:
                store.set(f"alive/{self.rank}", f"{count} {self.step}")
                beats = {rank: _text(store, f"alive/{rank}") for rank in range(self.size) if rank != self.rank}
            except RuntimeError:  # the meeting point is gone: the next exchange says so
                return
            now = self._awake.seconds()
            self._beats |= {r: (text, now) for r, text in beats.items() if self._beats.get(r, ("?", 0.0))[0] != text}
            if self._ended.wait(self._interval):
                return


def _text(store: Any, key: str) -> str:
    return str(store.get(key), "utf-8") if store.check([key]) else ""
