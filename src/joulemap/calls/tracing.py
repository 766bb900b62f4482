"""Whether a framework is tracing the program's code just now, rather than running it.

Inside ``tf.function``, ``jax.jit`` and their like the program's functions are run once, to see what they do.
What is called there is not measured; the call that leads there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def tracers() -> list[Callable[[], bool]]:
    """A question for each framework that is there by now: are you tracing?"""
    found = []
    for module, make in (
        ("tensorflow.python.eager.context", _tensorflow),
        ("jax._src.core", _jax),
        ("torch._C", _torch),
    ):
        if module in sys.modules:
            try:
                found.append(make(sys.modules[module]))
            except (AttributeError, KeyError):  # half imported, or of another version
                continue
    return found


def _tensorflow(context: Any) -> Callable[[], bool]:
    inside_function = sys.modules["tensorflow.python.framework.ops"].inside_function
    local = context.context()._thread_local_data

    def tracing() -> bool:
        return not local.is_eager and inside_function()

    return tracing


def _jax(core: Any) -> Callable[[], bool]:
    clean = core.trace_state_clean
    return lambda: not clean()


def _torch(native: Any) -> Callable[[], bool]:
    state = native._get_tracing_state
    return lambda: state() is not None
