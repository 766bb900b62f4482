"""What is put in the place of TensorFlow's own functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from joulemap.frameworks.tensorflow.watch import Watch


def after(original: Callable[..., Any], watch: Watch, hook: Callable[..., None]) -> Callable[..., Any]:
    """``original``, with ``hook`` called on the same arguments when it has returned."""

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        watch.attempt(hook, *args, **kwargs)
        return result

    return patched


def around(
    original: Callable[..., Any], watch: Watch, begin: Callable[..., Any], end: Callable[[Any], None]
) -> Callable[..., Any]:
    """``original`` between ``begin``, which gets its arguments, and ``end``, which gets what ``begin`` gave.

    An exception passes without a trace of us: its traceback is what it was (from Python 3.11 on).
    """

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        token = watch.attempt(begin, *args, **kwargs)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        finally:
            if token is not None:
                watch.surely(end, token)

    return patched
