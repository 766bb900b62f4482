"""One sampling loop for several sessions. It runs while there is a session, and costs nothing otherwise."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.meter import Meter
from joulemap.monitor.coarse import coarse
from joulemap.monitor.sampler import BATCH_NS, Batch, Sampler
from joulemap.monitor.track import Note
from joulemap.monitor.waiter import PipeWaiter
from joulemap.monitor.whose import Whose
from joulemap.monitor.wire import Delivery
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

MOST_SESSIONS, MOST_UNREAD = 48, 16
MOST_WAITING = 3600
"""Parts that are kept for a reader that does not come; of older ones only the energy is kept."""

UNREAD_S = 60.0
"""A session that nobody reads for this long is ended."""

FASTEST_NS = NS_PER_S // 20
_ANSWER_S = 10.0


class Session:
    """What one client gets: everything from its start to its stop, each part once."""

    def __init__(self, domains: Sequence[Domain], whose: Whose | None, start_ns: int, every_ns: int) -> None:
        self.name = secrets.token_hex(16)
        self.domains = domains
        self.start_ns = self.until_ns = start_ns
        self.every_ns = every_ns
        self._whose = whose
        self._waiting: deque[Delivery] = deque()
        self._thinned = 0
        self._news = threading.Condition()
        self._ended = self.taken = False
        self._read_s = time.monotonic()

    def put(self, batch: Batch) -> None:
        """Add a part; never waits for the reader."""
        shares = self._whose.shares(batch.t_ns) if self._whose else []
        with self._news:
            self._waiting.append(Delivery(self._since_start(batch), shares))
            if len(self._waiting) > MOST_WAITING:
                self._thin()
            self.until_ns = batch.t_ns
            self._news.notify_all()

    def _since_start(self, batch: Batch) -> Batch:
        """What was metered for other sessions before this one began is not its own."""
        if all(trace.edges_ns[0] >= self.start_ns for trace in batch.power):
            return batch
        power = [part for trace in batch.power if len(part := _from(trace, self.start_ns))]
        return replace(batch, power=power)

    def _thin(self) -> None:
        oldest, next_one = self._waiting.popleft(), self._waiting.popleft()
        self._waiting.appendleft(coarse(oldest, next_one))
        self._thinned += 1

    def wait_until(self, t_ns: int, seconds: float) -> None:
        """Until parts reach this time."""
        with self._news:
            self._news.wait_for(lambda: self.until_ns >= t_ns or self._ended, seconds)

    def take_over(self) -> bool:
        """Become the reader; False where there is one."""
        with self._news:
            first, self.taken = not self.taken, True
            return first

    def parts(self) -> Iterator[Delivery]:
        """Parts as they come, until the session has ended and all are taken."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                part = self._confessed(self._waiting.popleft())
            yield part

    def _confessed(self, part: Delivery) -> Delivery:
        """With a note where it stands for several: the oldest one, which is taken first."""
        if not self._thinned:
            return part
        text = f"{self._thinned + 1} parts were made one, because nobody read them in time."
        self._thinned = 0
        return replace(
            part, batch=replace(part.batch, notes=[*part.batch.notes, Note(part.batch.t_ns, text)])
        )

    @property
    def forgotten(self) -> bool:
        """Whether nobody has come to read it for long."""
        return not self.taken and time.monotonic() - self._read_s > UNREAD_S

    def end(self) -> None:
        """No more parts come."""
        with self._news:
            self._ended = True
            self._news.notify_all()


def _from(trace: PowerTrace, start_ns: int) -> PowerTrace:
    """The intervals that end after a time."""
    first = int(np.searchsorted(trace.edges_ns[1:], start_ns, side="right"))
    return PowerTrace(trace.domain, trace.edges_ns[first:], trace.energy_j[first:], trace.gap[first:])


@dataclass
class _Loop:
    sampler: Sampler
    waiter: PipeWaiter
    thread: threading.Thread


class Hub:
    """Starts and stops sessions; all of them are fed by one loop."""

    def __init__(self, meters: Callable[[], Sequence[Meter]]) -> None:
        self._meters = meters
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        # Replaced, never changed: the loop goes through it without the lock.
        self._sessions: dict[str, Session] = {}
        self._unread: dict[str, Session] = {}
        sampler = Sampler(meters())
        self.domains = sampler.domains
        sampler.close()

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, program_pid: int = 0, every_s: float = 0.0) -> Session:
        """Open a session. MeterError where nothing can be metered any more, or there are too many."""
        with self._lock:
            if len(self._sessions) >= MOST_SESSIONS:
                raise MeterError(f"{MOST_SESSIONS} sessions are open.", "Stop one of them first.")
            loop = self._running()
            domains, now_ns = loop.sampler.domains, loop.sampler.timeline.now_ns()
            whose = Whose(program_pid, domains, now_ns) if program_pid else None
            every_ns = max(round(every_s * NS_PER_S), FASTEST_NS) if every_s > 0 else BATCH_NS
            session = Session(domains, whose, now_ns, every_ns)
            self._set({**self._sessions, session.name: session})
            loop.waiter.flush()
            return session

    def stop(self, name: str) -> Session | None:
        """End a session, after what was metered until now was put into it; None where there is none."""
        with self._lock:
            session, loop = self._sessions.get(name), self._loop
            if session is None or loop is None:
                return None
            if len(self._sessions) == 1:
                self._end_loop(loop)
            elif loop.thread.is_alive():
                loop.waiter.flush()
                session.wait_until(loop.sampler.timeline.now_ns(), _ANSWER_S)
            self._set({key: value for key, value in self._sessions.items() if key != name})
            self._keep_unread(session)
            session.end()
            return session

    def _keep_unread(self, session: Session) -> None:
        """Who stops first and reads afterwards gets everything as well, if it does not take too long."""
        if not session.taken:
            kept = list(self._unread.items())[1 - MOST_UNREAD :]
            self._unread = {**dict(kept), session.name: session}

    def get(self, name: str) -> Session | None:
        """A session that is open, or was stopped and not read yet."""
        return self._sessions.get(name) or self._unread.pop(name, None)

    def close(self) -> None:
        """End all sessions."""
        for name in list(self._sessions):
            self.stop(name)

    def _set(self, sessions: dict[str, Session]) -> None:
        self._sessions = sessions
        if self._loop is not None and sessions:
            self._loop.sampler.batch_every_ns = min(session.every_ns for session in sessions.values())

    def _running(self) -> _Loop:
        if self._loop is not None and not self._loop.thread.is_alive():
            self._end_loop(self._loop)
        if self._loop is None:
            sampler, waiter = Sampler(self._meters()), PipeWaiter()
            sampler.prime()
            thread = threading.Thread(target=self._sample, args=(sampler, waiter), daemon=True)
            self._loop = _Loop(sampler, waiter, thread)
            thread.start()
        return self._loop

    def _end_loop(self, loop: _Loop) -> None:
        loop.waiter.stop()
        loop.thread.join()
        loop.waiter.close()
        self._loop = None

    def _sample(self, sampler: Sampler, waiter: PipeWaiter) -> None:
        try:
            sampler.run(waiter, self._hand_over)
        finally:
            for session in self._sessions.values():
                session.end()

    def _hand_over(self, batch: Batch) -> None:
        for name, session in self._sessions.items():
            session.put(batch)
            if session.forgotten:
                self.stop_soon(name)

    def stop_soon(self, name: str) -> None:
        """Stop a session, where it is not stopped yet, from a thread that must not wait."""
        if name in self._sessions:
            threading.Thread(target=self.stop, args=(name,), daemon=True).start()
