"""Calls one by one: a program that waits for calm, and who tells it when that is."""

import dataclasses
import os
import threading
import time

import numpy as np
import pytest

from joulemap.calls.isolation import ANSWER, ASK, Gate
from joulemap.calls.protocol import PROTOCOLS, Protocol
from joulemap.devices import Domain
from joulemap.recorder.gatekeeper import Gatekeeper, limits_of
from joulemap.recording import RecordingAppender, RecordingInfo, RecordingWriter
from joulemap.recording.folder import RAW
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

CPU = Domain("package-0", "CPU", sensor="rapl", update_period_s=0.01)
QUICK = dataclasses.replace(
    PROTOCOLS["joulemap"], sample_s=0.1, look_every_s=0.01, timeout_s=0.2, tail_timeout_s=0.2
)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "r.joulemap"
    with RecordingWriter.create(path, RecordingInfo(command=[])):
        yield path


def write_power(path, watts, seconds=4.0, ahead_s=30.0):
    """Power that ends a while from now, so that whenever the question is asked it is known already."""
    edges = time.time_ns() + round((ahead_s - seconds) * NS_PER_S) + np.arange(0, len(watts) + 1) * 10_000_000
    with RecordingAppender(path) as appender:
        appender.append_power(PowerTrace(CPU, edges, np.asarray(watts) * 0.01))


def gates(path, protocol=QUICK, **options):
    keeper = Gatekeeper(path, protocol, **options).start()
    return keeper, Gate(path / RAW, time.time_ns, protocol.timeout_s)


def called(gate):
    gate.before(3)
    gate.after(3)
    return gate.gate()


def test_on_a_calm_machine_the_gate_opens(recording):
    write_power(recording, np.full(400, 30.0))
    keeper, gate = gates(recording, idle_w={"package-0": 30.0})
    began_ns, outcome, calm_ns = called(gate)
    assert outcome == "stable"
    assert 0 < began_ns < calm_ns
    assert keeper.stop() == []
    gate.close()


@pytest.mark.parametrize(
    ("watts", "idle_w", "why"),
    [
        (np.repeat([20.0, 40.0], 10).tolist() * 20, 30.0, "varies"),
        (np.full(400, 60.0), 30.0, "draws"),
    ],
)
def test_what_is_not_calm_in_time_is_marked_and_the_call_runs(recording, watts, idle_w, why):
    write_power(recording, watts)
    keeper, gate = gates(recording, idle_w={"package-0": idle_w})
    assert called(gate)[1] == "timed out"
    (note,) = keeper.stop()
    assert "1 of 1 isolated calls" in note
    assert why in note
    gate.close()


def test_an_answer_waits_for_the_power_up_to_the_question(recording):
    write_power(recording, np.full(400, 30.0), ahead_s=-1.0)
    keeper, gate = gates(recording, idle_w={"package-0": 30.0})
    assert called(gate)[1] == "timed out"
    assert "not known yet" in keeper.stop()[0]
    gate.close()


def test_without_a_meter_nobody_is_kept_waiting(recording):
    patient = dataclasses.replace(QUICK, timeout_s=3600.0)
    keeper, gate = gates(recording, patient, metered=False)
    assert called(gate)[1] == "timed out"
    keeper.stop()
    gate.close()


def test_a_call_of_another_thread_meanwhile_runs_at_once_and_is_not_isolated(recording):
    write_power(recording, np.full(400, 30.0))
    keeper, gate = gates(recording, idle_w={"package-0": 30.0})
    gate.before(1)
    seen = []
    other = threading.Thread(target=lambda: seen.append(called(gate)))
    other.start()
    other.join()
    gate.after(1)
    assert seen == [(0, "", 0)]
    assert gate.gate()[1] == "stable"
    assert called(gate)[1] == "stable"  # the turn was given back
    keeper.stop()
    gate.close()


def test_when_nobody_answers_any_more_the_program_goes_on(recording):
    raw = recording / RAW
    raw.mkdir()
    for name in (ASK, ANSWER):
        os.mkfifo(raw / name)
    writer = os.open(raw / ANSWER, os.O_RDWR)
    gate = Gate(raw, time.time_ns, 0.0)
    os.close(writer)  # as when joulemap run is killed
    assert called(gate)[1] == ""
    assert called(gate) == (0, "", 0)
    gate.close()


def test_fecoms_protocol_has_its_published_constants():
    fecom = PROTOCOLS["fecom"]
    limits = limits_of(fecom)
    assert (fecom.samples, fecom.sample_s, fecom.timeout_s, fecom.tail_s) == (20, 0.5, 120.0, 30.0)
    assert (limits.spread["CPU"], limits.spread["DRAM"], limits.spread["GPU"]) == (0.03, 0.03, 0.01)
    assert limits.hottest_c == {"CPU": 55.0, "GPU": 40.0}
    assert limits.above_idle == float("inf")
    assert Protocol.from_json(fecom.to_json()) == fecom
