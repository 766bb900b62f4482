"""Says when the machine is calm, to a program whose calls are measured one by one.

It looks at what the monitor has recorded so far, so that no meter is read twice, and judges it with the gate
of ``stability.py``. Power is written about once a second: an answer waits until the power up to the question
is known.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from joulemap.baselines import Baselines, machine
from joulemap.calls.isolation import AFTER, ANSWER, ASK, BEFORE, STABLE, TIMED_OUT
from joulemap.calls.protocol import Protocol
from joulemap.devices import Domain, roots
from joulemap.errors import JoulemapError
from joulemap.idle import samples_w
from joulemap.recording import Recording
from joulemap.recording.folder import RAW
from joulemap.stability import GateSettings, Verdict, by_device, judge
from joulemap.traces import Float64, PowerTrace
from joulemap.units import NS_PER_S

_KEPT_S = 60.0
"""How much of the past is looked at; the lowest level in it stands for idle where no baseline is stored."""


class Gatekeeper:
    """A thread beside the program. It answers every question, whatever happens."""

    def __init__(
        self,
        recording: Path,
        protocol: Protocol,
        metered: bool = True,
        idle_w: Mapping[str, float] | None = None,
    ) -> None:
        self._recording, self._protocol, self._metered = recording, protocol, metered
        self._limits = limits_of(protocol)
        self._idle_w = _stored_w() if idle_w is None else idle_w
        self._over = threading.Event()
        self._asked = self._late = 0
        self._said: tuple[str, ...] = ()
        self._why: tuple[str, ...] = ()
        raw = recording / RAW
        raw.mkdir(parents=True, exist_ok=True)
        for name in (ASK, ANSWER):
            os.mkfifo(raw / name)
        self._ask, self._answer = (os.open(raw / name, os.O_RDWR) for name in (ASK, ANSWER))
        self._thread = threading.Thread(target=self._run, name="joulemap gate", daemon=True)

    def start(self) -> Gatekeeper:
        self._thread.start()
        return self

    def stop(self) -> list[str]:
        """Answer no more; what there is to say about how it went."""
        self._over.set()
        os.write(self._ask, b"\n")  # wakes it up
        self._thread.join()
        for handle, name in ((self._ask, ASK), (self._answer, ANSWER)):
            os.close(handle)
            (self._recording / RAW / name).unlink(missing_ok=True)
        if not self._late:
            return []
        why = f" At last: {'; '.join(self._why)}." if self._why else ""
        return [f"The machine was not calm in time before {self._late} of {self._asked} isolated calls.{why}"]

    def _run(self) -> None:
        rest = b""
        while not self._over.is_set():
            *questions, rest = (rest + os.read(self._ask, 4096)).split(b"\n")
            for question in questions:
                if question + b"\n" in (BEFORE, AFTER):
                    self._reply(question + b"\n" == BEFORE)

    def _reply(self, before: bool) -> None:
        wait = self._protocol
        least_s, most_s = (wait.before_s, wait.timeout_s) if before else (wait.tail_s, wait.tail_timeout_s)
        calm = False
        with suppress(Exception):  # whatever fails here, the program must go on
            calm = self._metered and self._calm(least_s, most_s)
        if before:
            self._asked += 1
            self._late += not calm
            self._why = self._why if calm else self._said
        os.write(self._answer, f"{STABLE if calm else TIMED_OUT}\n".encode())

    def _calm(self, least_s: float, most_s: float) -> bool:
        """Wait until the gate opens, or time is up."""
        asked_ns, begun_s = time.time_ns(), time.monotonic()
        self._over.wait(least_s)
        while True:
            verdict = self._look(asked_ns)
            if verdict.stable:
                return True
            self._said = verdict.reasons
            if time.monotonic() - begun_s >= most_s or self._over.wait(self._protocol.look_every_s):
                return False

    def _look(self, asked_ns: int) -> Verdict:
        """What the gate says of the power up to now."""
        try:
            recording = Recording.open(self._recording)
            every = recording.power()
            adding = {domain.name for domain in roots([trace.domain for trace in every])}
            power = [trace for trace in every if trace.domain.name in adding]
            facts = _latest_facts(recording)
        except JoulemapError as error:
            return Verdict((error.message,))
        behind = [trace.domain.name for trace in power if not len(trace) or trace.edges_ns[-1] < asked_ns]
        if behind or not power:
            return Verdict((f"the power of {', '.join(behind) or 'anything'} is not known yet",))
        samples = {trace.domain: self._samples_w(trace) for trace in power}
        return verdict_of(samples, self._limits, self._idle_w, facts)

    def _samples_w(self, trace: PowerTrace) -> Float64:
        since = np.searchsorted(trace.edges_ns, trace.edges_ns[-1] - round(_KEPT_S * NS_PER_S))
        recent = PowerTrace(trace.domain, trace.edges_ns[since:], trace.energy_j[since:], trace.gap[since:])
        return samples_w(recent, max(self._protocol.sample_s, trace.period_s))


def limits_of(protocol: Protocol) -> GateSettings:
    """The protocol's limits as the gate takes them."""
    return GateSettings(
        samples=protocol.samples,
        spread=protocol.spread,
        above_idle=float("inf") if protocol.above_idle is None else protocol.above_idle,
        hottest_c=protocol.hottest_c,
        busiest_percent=protocol.busiest_percent,
    )


def verdict_of(
    samples: Mapping[Domain, Float64],
    limits: GateSettings,
    idle_w: Mapping[str, float],
    facts: Mapping[str, float],
) -> Verdict:
    """The gate's verdict on samples and facts."""
    load = by_device(facts, "load_percent", "utilisation_percent")
    return judge(samples, idle_w, by_device(facts, "temperature_c"), limits, load)


def _latest_facts(recording: Recording) -> dict[str, float]:
    table = recording.table("facts")
    if table is None:
        return {}
    return dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))


def _stored_w() -> dict[str, float]:
    """Idle levels that ``joulemap calibrate --idle`` kept for this machine."""
    with suppress(JoulemapError):
        return {one.baseline.domain: one.baseline.power_w for one in Baselines().all_of(machine())}
    return {}
