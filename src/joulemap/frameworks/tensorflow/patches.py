"""Attributes of other people's classes and modules, replaced for a while and then put back as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from joulemap.frameworks.tensorflow.watch import Watch

_ABSENT = object()


class Patches:
    """What was replaced by what."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, object, object]] = []

    def put(self, owner: Any, name: str, ours: object) -> None:
        """Put ``ours`` in the place of a class's or module's own attribute."""
        self._put.append((owner, name, vars(owner).get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def restore(self) -> None:
        """Put everything back, except where somebody has put theirs over ours."""
        for owner, name, original, ours in reversed(self._put):
            if vars(owner).get(name) is not ours:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._put.clear()


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
                watch.attempt(end, token)

    return patched
