"""Programs whose processes are joined by gloo, run again when torch itself aborts one of them.

Gloo's threads outlive ``destroy_process_group`` and let go of their tensors while Python ends, which now and
then aborts a process that has done all its work, recorded or not (pytorch/pytorch#179291).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ABORTED = "terminate called without an active exception"
TRIES = 4

Done = TypeVar("Done")


def unaborted(run: Callable[[int], Done], said: Callable[[Done], str]) -> Done:
    """What the first try came to that torch did not abort, by what it said on stderr; else the last."""
    for turn in range(TRIES):
        done = run(turn)
        if ABORTED not in said(done):
            break
    return done
