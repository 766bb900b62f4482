"""What the live adapter left behind, read after the program has ended: the events of some steps."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.errors import InputError
from joulemap.frameworks import kineto_names
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.kineto import KinetoColumns, KinetoTrace, trace_of
from joulemap.frameworks.kineto_names import GPU_CATEGORIES, GPU_RANGES
from joulemap.frameworks.torch.extract import FILE, FORMAT, NO_CATEGORY
from joulemap.frameworks.torch.names import MODULE
from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.traces import EventTrace, Int64, Steps


@dataclass(frozen=True, eq=False)
class _Session:
    """The columns of one session's file, and the words in them."""

    columns: Mapping[str, NDArray[Any]]
    names: Sequence[str]
    categories: Sequence[str]
    classes: Sequence[str]
    signatures: Sequence[str]


def read_raw(folder: Path, progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read all sessions of a raw folder. Steps are the recorder's to know, so there are none."""
    files = sorted(folder.rglob(FILE))
    sessions = [_read(path) for path in files]
    prefixes = _prefixes(sessions)
    traces: list[KinetoTrace] = []
    for number, session in enumerate(sessions):
        traces.append(trace_of(_columns(session, prefixes)))
        if progress is not None:
            progress((number + 1) / len(sessions))
    none = np.zeros(0, np.int64)
    empty = EventTrace.from_columns(name="", device="CPU", start_ns=none, end_ns=none, lane="")
    return ImportedTrace(
        events=EventTrace.joined([one.events for one in traces] or [empty]),
        steps=Steps.from_columns(start_ns=none, end_ns=none),
        program=Program(),
        framework="torch",
        notes=[note for one in traces for note in one.notes],
    )


def _read(path: Path) -> _Session:
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        said = json.loads(columns.pop("words").tobytes())
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged: {error}.", "It was not written to its end.") from error
    if said["format"] != FORMAT:
        raise InputError(f"{path} is of a later format ({said['format']}).", "Use a newer joulemap.")
    return _Session(columns, said["names"], said["categories"], said["classes"], said["signatures"])


def _prefixes(sessions: Sequence[_Session]) -> list[str]:
    """What the paths below each outermost module begin with: nothing where there is only one of them, else
    its class, and its number where there are several of the class."""
    classes = max((session.classes for session in sessions), key=len, default=())
    if len(classes) <= 2:
        return [""] * len(classes)
    met: Counter[str] = Counter()
    prefixes = []
    for name in classes:
        met[name] += 1
        prefixes.append(f"{name} ({met[name]})" if met[name] > 1 else name)
    return prefixes


def _columns(session: _Session, prefixes: Sequence[str]) -> KinetoColumns:
    """The rows of a session as the reading wants them; ranges drawn again on the GPU are no rows."""
    raw = session.columns
    rows = len(raw["start_ns"])
    linked, device = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    linked[raw["off_host"]] = raw["linked"]
    device[raw["off_host"]] = raw["device"]
    name = Labels(raw["name"], tuple(session.names))
    category = Labels(raw["category"], tuple(session.categories))
    on_gpu = _has(category, (*GPU_CATEGORIES, "gpu"))
    if NO_CATEGORY in session.categories:
        category = kineto_names.guess_categories(name, on_gpu, linked)
    launched = on_gpu | _has(category, ("cuda_runtime", "cuda_driver"))
    correlation = raw["correlation_id"]
    columns = KinetoColumns(
        name=name.mapped([_module_path(word, prefixes) for word in name.words]),
        category=category,
        start_ns=raw["start_ns"],
        end_ns=raw["start_ns"] + np.maximum(raw["duration_ns"], 0),
        device=np.where(on_gpu, device, -1),
        lane=_lanes(raw["device_resource_id"], on_gpu),
        op_id=np.where(launched, linked, correlation),
        correlation=np.where(launched, correlation, 0),
        sequence=raw["sequence_nr"],
        forward_thread=raw["fwd_thread_id"],
        thread_number=raw["start_thread_id"],
    )
    return columns.take(~_has(category, (GPU_RANGES,)))


def _has(labels: Labels, words: Sequence[str]) -> NDArray[np.bool_]:
    among = np.array([word in words for word in labels.words], bool)
    return among[labels.codes] if len(labels) else np.zeros(0, bool)


def _module_path(word: str, prefixes: Sequence[str]) -> str:
    """``M:2:encoder.0`` is ``M:Discriminator.encoder.0`` where there are several outermost modules."""
    if not word.startswith(MODULE):
        return word
    number, _, path = word.removeprefix(MODULE).partition(":")
    if not number.isdigit():
        return word
    return MODULE + ".".join(part for part in (prefixes[int(number)], path) if part)


def _lanes(number: Int64, on_gpu: NDArray[np.bool_]) -> Labels:
    """``thread 453`` and ``stream 7``."""
    used, codes = np.unique(np.stack((on_gpu.astype(np.int64), number)), axis=1, return_inverse=True)
    words = tuple(f"{'stream' if gpu else 'thread'} {one}" for gpu, one in used.T.tolist())
    return Labels(codes.reshape(-1).astype(np.int32), words)
