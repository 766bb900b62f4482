"""The monitor process: samples into a recording until it is told to stop, or its parent is gone."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from joulemap.errors import JoulemapError
from joulemap.monitor.sampler import Batch, Sampler
from joulemap.monitor.seat import Seat
from joulemap.monitor.settings import Report, Settings, error_line, meters_from, ready_line
from joulemap.monitor.store import Store
from joulemap.monitor.waiter import PipeWaiter
from joulemap.monitor.whose import Whose

_STDIN, _STDOUT = 0, 1
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_SWITCH_S = 0.0005  # a thread that writes or asks for facts must not hold up one that samples


def run(settings: Settings) -> int:
    """Sample until a byte or the end comes on standard input, a signal, or the parent dies."""
    waiter = PipeWaiter(_STDIN)
    _end_with_parent(settings.parent_pid, waiter)
    try:
        _say(_sample(settings, waiter).to_json())
    except JoulemapError as error:
        _say(error_line(error.message, error.hint))
        return 1
    except Exception:  # noqa: BLE001 - the last place where it can be told at all
        _say(error_line(traceback.format_exc(limit=-3), "Please report this: it is a bug in joulemap."))
        return 1
    finally:
        waiter.close()
    return 0


def _sample(settings: Settings, waiter: PipeWaiter) -> Report:
    sampler = Sampler(meters_from(settings.meters, settings.arguments))
    with Store(Path(settings.recording)) as store:
        whose = Whose(settings.program_pid, sampler.domains, sampler.timeline.now_ns())

        def hand_over(batch: Batch) -> None:
            store.write(batch, whose.shares(batch.t_ns), whose.monitor_share)
            if seat is not None:
                seat.move()
            if os.getppid() != settings.parent_pid:
                waiter.stop()

        seat = Seat() if _hurry() else None
        sampler.prime()
        _say(ready_line(sampler.domains))
        summary = sampler.run(waiter, hand_over)
        store.finish(sampler.timeline.now_ns())
        return Report.of(summary, store.problem.message if store.problem else "")


def _end_with_parent(parent_pid: int, waiter: PipeWaiter) -> None:
    """Have the system send a signal when the parent dies. It comes as well when only the thread that
    started us ends, so whether the parent is gone is looked up."""

    def parent_may_be_gone(*_: object) -> None:
        if os.getppid() != parent_pid:
            waiter.stop()

    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent may hold back signals while it waits
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: waiter.stop())
    signal.signal(signal.SIGHUP, parent_may_be_gone)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    parent_may_be_gone()


def _hurry() -> bool:
    """Be on time: wake exactly, and without pauses for garbage or late imports; and before others, where that
    is allowed, which is returned. The threads that sample are started later and inherit it."""
    importlib.import_module("numpy.ma")  # Arrow wants it for the first table
    sys.setswitchinterval(_SWITCH_S)
    _prctl(_PR_SET_TIMERSLACK, 1)
    gc.freeze()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _say(line: str) -> None:
    """Tell the parent, which may be gone."""
    with suppress(OSError):
        os.write(_STDOUT, line.encode() + b"\n")


def main(arguments: list[str]) -> int:
    """``python -m joulemap.monitor SETTINGS``, as :func:`~joulemap.monitor.child.start_monitor` calls it."""
    return run(Settings.from_json(arguments[-1]))
