"""What the files that ``joulemap patch`` writes import: sites that stand in the source.

``_joulemap(12, 5, 12, 6, f)(a, b)`` stands where ``f(a, b)`` stood, with ``f`` from line 12, column 5 to line
12, column 6. Where nothing is being recorded, ``f`` itself is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joulemap.calls.runtime import site

_libraries: dict[str, None] = {}


def sites(file: str, *libraries: str) -> Callable[..., Any]:
    """The sites of one source file, for calls of some libraries."""
    _choose(libraries)

    def site_at(line: int, column: int, end_line: int, end_column: int, callee: Any) -> Any:
        return site((file, line, column, end_line, end_column), callee)

    return site_at


def cells(file: str, *libraries: str) -> Callable[..., Any]:
    """The sites of a notebook; its cells count from 1."""
    _choose(libraries)

    def site_at(cell: int, line: int, column: int, end_line: int, end_column: int, callee: Any) -> Any:
        return site((f"{file}[{cell}]", line, column, end_line, end_column), callee)

    return site_at


def libraries() -> tuple[str, ...]:
    """Whose calls the patched files that were imported so far are about."""
    return tuple(_libraries)


def _choose(chosen: tuple[str, ...]) -> None:
    """A recording that is being made already starts to meter them now; a later one asks for them."""
    from joulemap.recorder.inside import current

    _libraries.update(dict.fromkeys(chosen))
    recording = current()
    if recording is not None:
        recording.meter_calls(libraries())
