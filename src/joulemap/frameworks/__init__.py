"""Frameworks: adapters that listen to a running program, and readers of the traces that they write to files.

Each is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulemap.frameworks.imported import ImportedTrace

__all__ = ["read_trace"]


def read_trace(paths: Sequence[Path], progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read trace files that belong together; the framework is told by their content.

    Several TensorFlow timelines are as many steps; several torch exports follow each other in time.
    ``progress`` is called with the share of the bytes that has been read.
    """
    from joulemap.frameworks.files import read_files

    return read_files(paths, progress)
