"""Read a table in either form. Nothing reaches a decoder before its checksum was found right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from joulemap.recording.files import ARROWS, PARQUET, beside
from joulemap.recording.parts import Contents, Part
from joulemap.recording.sealed import read_sealed
from joulemap.recording.stream import read_open


def read(stem: Path, sealed: Sequence[Part] | None, prefix: bool = False) -> Contents:
    """Read a table, sealed with these parts or else open; with ``prefix`` only up to the first damage."""
    path = beside(stem, ARROWS if sealed is None else PARQUET)
    try:
        return read_open(stem, prefix) if sealed is None else read_sealed(path, sealed, prefix)
    except FileNotFoundError as error:
        return Contents(damage=f"{error.filename} is missing.")
    except OSError as error:
        return Contents(damage=f"{path} cannot be read: {error.strerror or error}.")
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        return Contents(damage=f"{path} is damaged: {error}.")
