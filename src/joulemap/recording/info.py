"""``recording.json``: everything about a recording that is not in a table."""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from joulemap.devices import Domain
from joulemap.errors import DamagedRecording, InputError, NewerRecording, RecordingError
from joulemap.recording.files import PARQUET, replace_bytes
from joulemap.recording.folder import BACKUP, INFO, PROGRAM, files_of, is_open, stem_of
from joulemap.recording.parts import Part
from joulemap.traces import ClockAnchor

FORMAT = 1
"""1: the first."""

LAUNCHER = "launcher"
OF_ONE_RANK = "This is rank "
"""How a warning begins that holds as long as a rank's recording is by itself."""
SALVAGE_HINT = "Go on without the damaged part with --salvage, or restore the file from a copy."

Status = Literal["recording", "complete", "interrupted"]
T = TypeVar("T")


@dataclass(frozen=True)
class RecordingInfo:
    """Everything about a recording that is not in a table.

    ``files`` lists the files that must be there, with the checksums of their parts; those that are still
    open have none yet. ``extra`` keeps keys that this version does not know.
    """

    command: list[str] = field(default_factory=list)
    source: str = "run"
    host: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    window_ns: tuple[int, int] | None = None
    """The time that is the recording; energy outside it is reported as outside."""
    domains: list[Domain] = field(default_factory=list)
    anchors: list[ClockAnchor] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    job: dict[str, str] = field(default_factory=dict)
    """What the launcher says of the job that this is a rank of, the same for all its ranks; and which process
    it was (``LAUNCHER``), the same for those of a machine."""
    warnings: list[str] = field(default_factory=list)
    status: Status = "recording"
    files: dict[str, list[Part]] = field(default_factory=dict)
    format: int = FORMAT
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """As recording.json holds it, with a checksum over all of it."""
        content = dataclasses.asdict(self)
        content["files"] = {name: [str(part) for part in parts] for name, parts in self.files.items()}
        content = {"format": content.pop("format"), **content.pop("extra"), **content}
        try:
            plain = json.loads(json.dumps(content, allow_nan=False))
            return json.dumps({**plain, "crc32": _crc32(plain)}, indent=1)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"What is known about the recording cannot be written as JSON: {error}.",
                "Use plain strings, numbers, lists and dictionaries in host, versions and extra.",
            ) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordingInfo:
        """Read recording.json; ValueError when it is not what :meth:`to_json` wrote, NewerRecording when
        a newer joulemap wrote it."""
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise ValueError("it has no format number")
        if content["format"] > FORMAT:
            raise NewerRecording(
                f"It was written by a newer joulemap (format {content['format']}; this one reads up to "
                f"{FORMAT}).",
                "Upgrade joulemap: pip install --upgrade joulemap.",
            )
        if content.pop("crc32", None) != _crc32(content):
            raise ValueError("it was changed after it was written")
        return cls._from_content(content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> RecordingInfo:
        names = {column.name for column in dataclasses.fields(cls)}
        known = {name: value for name, value in content.items() if name in names}
        known["extra"] = {name: value for name, value in content.items() if name not in names}
        known["domains"] = [value_from(Domain, domain) for domain in known.get("domains", [])]
        known["anchors"] = [value_from(ClockAnchor, anchor) for anchor in known.get("anchors", [])]
        known["files"] = {
            name: [Part.parse(part) for part in parts] for name, parts in known["files"].items()
        }
        window = known.get("window_ns")
        return cls(**{**known, "window_ns": None if window is None else tuple(window)})


def _crc32(content: Mapping[str, Any]) -> str:
    """A checksum of what JSON says, however it is laid out."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def value_from(cls: Callable[..., T], content: Mapping[str, Any]) -> T:
    """Make a value from JSON; what a later version added to it is passed over."""
    names = {column.name for column in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in content.items() if name in names})


def save_info(folder: Path, info: RecordingInfo) -> None:
    """Replace recording.json, then its backup."""
    content = info.to_json().encode()
    for name in (INFO, BACKUP):
        replace_bytes(folder / name, content)


def read_info(path: Path) -> RecordingInfo:
    """Read recording.json or its backup; DamagedRecording or NewerRecording names the file."""
    try:
        return RecordingInfo.from_json(path.read_bytes())
    except NewerRecording as error:
        raise NewerRecording(f"{path}: {error.message}", error.hint) from None
    except FileNotFoundError:
        raise DamagedRecording(f"{path} is missing.", SALVAGE_HINT) from None
    except OSError as error:
        raise DamagedRecording(f"{path} cannot be read: {error.strerror}.", SALVAGE_HINT) from error
    except (ValueError, TypeError, KeyError, InputError, RecursionError) as error:
        raise DamagedRecording(f"{path} is damaged: {error}.", SALVAGE_HINT) from error


def spare_copy_notes(folder: Path) -> list[str]:
    """What is wrong with the second copy of recording.json, while the first can still be read."""
    try:
        read_info(folder / BACKUP)
    except RecordingError as error:
        return [f"{error.message} It is only the second copy of {INFO}."]
    return []


def salvage_info(folder: Path, notes: list[str]) -> RecordingInfo:
    """From recording.json, else from its backup, else from what the tables say about themselves."""
    try:
        return read_info(folder / INFO)
    except RecordingError as error:
        problem = error
    notes.append(problem.message)
    with suppress(DamagedRecording):
        return read_info(folder / BACKUP)
    if isinstance(problem, NewerRecording):
        raise problem
    notes.append(
        f"{folder / BACKUP} cannot be read either: only the tables are left, and those that were sealed "
        "are read without their checksums."
    )
    sealed = [name for name in files_of(folder) if name.endswith((PARQUET, PROGRAM))]
    files = {name: list[Part]() for name in sealed if not is_open(folder / stem_of(name))}
    return RecordingInfo(source="salvaged", created_ns=0, status="interrupted", files=files)
