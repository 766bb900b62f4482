"""Ctrl-C, sent by ourselves. The standard library only."""

from __future__ import annotations

import signal
import sys
from types import TracebackType


def interrupt() -> None:
    """End this program as Ctrl-C would: it may catch that, and save what it has. Where it does not, it ends
    without a traceback, since that was asked for; an ``excepthook`` of its own is called all the same."""
    before = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if before is not sys.__excepthook__ or not issubclass(kind, KeyboardInterrupt):
            before(kind, error, trace)

    sys.excepthook = say
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell script
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
