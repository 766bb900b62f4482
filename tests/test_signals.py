"""Handlers of signals that wait until we have done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from joulemap.frameworks.watch import Watch
from joulemap.recorder.signals import held


class Late(Exception):
    """Raised by a handler."""


@pytest.fixture
def handled() -> Iterator[list[str]]:
    """Signals that were handled. The first of two raises."""
    heard = list[str]()

    def raises(*_: Any) -> None:
        heard.append("first")
        raise Late

    before = {one: signal.getsignal(one) for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)}
    signal.signal(signal.SIGUSR1, raises)
    signal.signal(signal.SIGUSR2, lambda *_: heard.append("second"))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_comes_is_handled_after_it(handled: list[str]) -> None:
    ours = signal.getsignal(signal.SIGUSR1)

    def comes() -> None:
        with held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)
            handled.append("done")

    with pytest.raises(Late):
        comes()
    assert handled == ["done", "first", "second"]
    assert signal.getsignal(signal.SIGUSR1) is ours


def test_what_fails_meanwhile_is_still_known(handled: list[str]) -> None:
    def fails() -> None:
        with held():
            signal.raise_signal(signal.SIGUSR1)
            raise ArithmeticError

    with pytest.raises(Late) as late:
        fails()
    assert isinstance(late.value.__context__, ArithmeticError)
    with pytest.raises(ArithmeticError), held():
        raise ArithmeticError
    assert handled == ["first"]


def test_ctrl_c_is_heard_when_it_is_pressed_twice(handled: list[str]) -> None:
    signal.signal(signal.SIGINT, lambda *_: handled.append("interrupted"))
    with held():
        signal.raise_signal(signal.SIGINT)
        assert handled == []
        signal.raise_signal(signal.SIGINT)
        assert handled == ["interrupted"]


@pytest.mark.parametrize("kind", ["partial", "object", "class", "one that resets itself"])
def test_whatever_a_handler_is_what_it_raises_is_known_to_be_the_programs(
    kind: str, handled: list[str]
) -> None:
    class Raises:
        def __init__(self, *given: Any) -> None:
            if given:
                raise Late

        def __call__(self, number: int, frame: Any) -> None:
            raise Late

    def resets(which: str, number: int, frame: Any) -> None:
        if kind != "partial":
            signal.signal(number, signal.SIG_IGN)
        raise Late(which)

    kinds = {"object": Raises(), "class": Raises}
    signal.signal(signal.SIGUSR1, kinds.get(kind, partial(resets, "now")))
    watch = Watch("PyTorch")
    with pytest.raises(Late):
        watch.attempt(signal.raise_signal, signal.SIGUSR1)
    assert watch.attempt(partial(resets, "hook"), signal.SIGUSR1, None) is None  # a hook's own
    assert len(watch.problems) == 1
    assert handled == []


def test_who_is_told_of_signals_by_other_ways_is_told_once(handled: list[str]) -> None:
    async def waits() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.append, "called")
        with held():
            signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(0.05)

    asyncio.run(waits())
    assert handled == ["called"]


def test_all_handlers_are_put_back_where_several_raise(handled: list[str]) -> None:
    signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGUSR1))
    before = [signal.getsignal(one) for one in (signal.SIGUSR1, signal.SIGUSR2)]

    def come() -> None:
        with held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)

    with pytest.raises(Late) as late:
        come()
    assert isinstance(late.value.__context__, Late)
    assert handled == ["first", "first"]
    assert [signal.getsignal(one) for one in (signal.SIGUSR1, signal.SIGUSR2)] == before


@pytest.mark.usefixtures("handled")
def test_a_child_that_is_forked_meanwhile_handles_its_own() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    with held():
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGUSR1)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_another_thread_changes_nothing(handled: list[str]) -> None:
    found = list[object]()

    def looks() -> None:
        with held():
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=looks)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGUSR1)]
    assert handled == []


WAITING = """
import ctypes, os, signal, sys, threading, time
from contextlib import nullcontext
from joulemap.recorder.signals import held

signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, sys.argv[1] == "interrupts")
with held() if sys.argv[2] == "held" else nullcontext():
    pass
reads, writes = os.pipe()
here = threading.get_ident()

def disturbs():
    time.sleep(0.2)
    signal.pthread_kill(here, signal.SIGUSR1)
    time.sleep(0.2)
    os.write(writes, b"x")

threading.Thread(target=disturbs).start()
print(ctypes.CDLL(None).read(reads, ctypes.create_string_buffer(1), 1))
"""


@pytest.mark.parametrize(("how", "expected"), [("interrupts", "-1"), ("resumes", "1")])
def test_calls_of_the_system_are_resumed_as_they_were(how: str, expected: str) -> None:
    """As told by ``siginterrupt``, which ``signal.signal`` forgets."""
    found = [
        subprocess.run(
            [sys.executable, "-c", WAITING, how, where], capture_output=True, text=True, check=True
        )
        for where in ("plain", "held")
    ]
    assert [one.stdout.strip() for one in found] == [expected, expected]
