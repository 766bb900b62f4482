"""From the journal and the raw traces to the tables of the recording, when the program has ended.

Thinking is done here, outside the program's time. It works on whatever is there: a program that was killed
leaves a journal that stops, and the recording says so.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from joulemap.calls.raw import read_calls
from joulemap.devices import Device
from joulemap.errors import JoulemapError
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.raw import read_raw
from joulemap.program import Program
from joulemap.recorder.between import (
    Step,
    in_order,
    named_spans,
    since_first_step,
    steps_table,
    with_slices_between,
)
from joulemap.recorder.journal import COMPILED, TRACED, UNTRACED
from joulemap.recorder.story import Story
from joulemap.recording import Recording, RecordingWriter
from joulemap.recording.folder import RAW
from joulemap.recording.info import Status
from joulemap.recording.names import REGIONS, SESSIONS, SIGNATURES, VALUES
from joulemap.traces import EventTrace
from joulemap.units import fmt_share

TRACING, FLAGS = "tracing", "flags"
NEVER_STARTED = (
    "The program's side of joulemap did not start, so there are no steps and no operations. "
    "joulemap must be installed for the Python that runs the program."
)
TOO_SOON = (
    "No step was traced: the first few of a kind are not, and of none there were more. "
    "Trace all of them to see where their energy goes: --trace-all."
)
WORKERS = (
    "The CPU energy of data loaders' workers is in what the program's main thread did meanwhile: they could "
    "not be told apart from it, because they did not live for long or PyTorch is an old one."
)
HELPERS = (
    "Processes that the program has started compute beside it: their CPU energy is in what its main thread "
    "did meanwhile."
)
_MOVED_NS = 1_000_000
_SPAN = {"start_ns": pa.int64(), "end_ns": pa.int64()}
_SESSION = {
    name: pa.int64() for name in ("number", "opened_ns", "started_ns", "closing_ns", "closed_ns", "steps")
}


def finish(
    writer: RecordingWriter,
    ended_ns: int,
    *,
    how: str = "",
    overhead: float | None = None,
    progress: Callable[[float], None] | None = None,
    keep_raw: bool = False,
) -> Status:
    """Write what the program's side has left, and finish the recording.

    ``how`` says how the program ended where its exit handlers did not run, ``overhead`` what tracing was
    allowed to cost. What cannot be understood becomes a warning, and its raw files stay.
    """
    raw = writer.path / RAW
    story = Story.read(raw)
    window_ns = story.window_ns(ended_ns)
    traces, problems = _understood(writer, story, progress)
    begun_ns, steps = since_first_step(in_order(_steps(story, traces), window_ns))
    steps = with_slices_between(steps, window_ns[1])
    parts = [one.events.take(one.events.end_ns > begun_ns) for one in traces]
    named = named_spans(steps, story.sessions, window_ns, parts, story.compilations)
    writer.put_events(EventTrace.joined([*parts, named]))
    table = steps_table(steps)
    if len(table):
        writer.put_steps(table)
    programs = [one.program for one in traces if one.program.operations]
    if programs:
        writer.put_program(Program.joined(programs))
    _put_small(writer, story)
    calls = read_calls(raw, window_ns[1])
    if calls is not None:
        writer.put_calls(calls)
    _put_signatures(writer, traces)
    notes = [*story.warnings, *problems, *(note for one in traces for note in one.notes)]
    notes += _judgement(story, how, overhead)
    notes += _too_soon(story, steps, overhead)
    notes += _mixed_up(writer, story)
    flags = {name: value for one in traces for name, value in one.flags.items()}
    writer.update(
        warnings=[*writer.info.warnings, *dict.fromkeys(notes)],
        versions={**writer.info.versions, **story.versions},
        extra={
            **writer.info.extra,
            TRACING: {"budget": overhead, "share": story.tracing_share},
            **({FLAGS: flags} if flags else {}),
        },
    )
    status: Status = "interrupted" if story.end_ns is None else "complete"
    writer.finish(status, window_ns)
    if not problems and not keep_raw:
        shutil.rmtree(raw, ignore_errors=True)
    return status


def _understood(
    writer: RecordingWriter, story: Story, progress: Callable[[float], None] | None
) -> tuple[list[ImportedTrace], list[str]]:
    """The traces of every framework, on our clock; and what could not be read."""
    try:
        traces = read_raw(writer.path / RAW, progress, _compiled_ns(story))
    except JoulemapError as error:
        return [], [f"The traces could not be read: {error.message} They are kept in {RAW}/."]
    except Exception as error:  # noqa: BLE001 - the power and the steps must not be lost with it
        return [], [f"The traces could not be read: {error!r}. They are kept in {RAW}/; please report this."]
    return [_on_our_clock(one, story) for one in traces], []


def _compiled_ns(story: Story) -> list[tuple[int, int]]:
    """Steps of sessions in which something was compiled, on the clock of the traces."""
    return [
        (start_ns + _ahead_ns(session), end_ns + _ahead_ns(session))
        for start_ns, end_ns, _, seen in story.steps
        if seen == COMPILED
        for session in story.sessions
        if start_ns < session["closed_ns"] and end_ns > session["opened_ns"]
    ]


def _ahead_ns(session: Mapping[str, Any]) -> int:
    """What the system clock was set by since the program started."""
    ahead_ns = int(session["clock_ahead_ns"])
    return ahead_ns if abs(ahead_ns) > _MOVED_NS else 0


def _on_our_clock(trace: ImportedTrace, story: Story) -> ImportedTrace:
    """Undo what the system clock was set by."""
    start_ns, end_ns = trace.events.start_ns.copy(), trace.events.end_ns.copy()
    for session in story.sessions:
        ahead_ns = _ahead_ns(session)
        if ahead_ns:
            theirs = trace.events.start_ns - ahead_ns
            inside = (theirs >= session["opened_ns"]) & (theirs <= session["closed_ns"])
            start_ns[inside] -= ahead_ns
            end_ns[inside] -= ahead_ns
    return dataclasses.replace(
        trace, events=dataclasses.replace(trace.events, start_ns=start_ns, end_ns=end_ns)
    )


def _steps(story: Story, traces: list[ImportedTrace]) -> list[tuple[int, int, str, int]]:
    """A step was traced where there are events in it; what a profiler has lost is metered only."""
    begins = np.sort(np.concatenate([np.zeros(0, np.int64), *(one.events.start_ns for one in traces)]))
    spans = np.array([step[:2] for step in story.steps], np.int64).reshape(-1, 2)
    busy = np.searchsorted(begins, spans[:, 1]) > np.searchsorted(begins, spans[:, 0])
    return [
        (*step[:3], UNTRACED if step[3] == TRACED and not events else step[3])
        for step, events in zip(story.steps, busy.tolist(), strict=True)
    ]


def _put_small(writer: RecordingWriter, story: Story) -> None:
    if story.regions:
        schema = pa.schema({**_SPAN, "name": pa.string(), "count": pa.float64(), "unit": pa.string()})
        rows = [dict(zip(schema.names, region, strict=True)) for region in story.regions]
        writer.put_table(REGIONS, pa.Table.from_pylist(rows, schema))
    if story.sessions:
        schema = pa.schema({**_SESSION, "slow_down_s": pa.float64()})
        writer.put_table(SESSIONS, pa.Table.from_pylist(story.sessions, schema))


def _put_signatures(writer: RecordingWriter, traces: list[ImportedTrace]) -> None:
    rows = [dataclasses.asdict(one) for trace in traces for one in trace.signatures]
    if rows:
        words = ("name", "op", "phase", "shapes", "strides", "types", "scalars", "cold")
        texts = dict.fromkeys(words, pa.string())
        writer.put_table(SIGNATURES, pa.Table.from_pylist(rows, pa.schema({**texts, "calls": pa.int64()})))
    held = [dataclasses.asdict(one) for trace in traces for one in trace.values]
    if held:
        texts = dict.fromkeys(("op", "shapes", "strides", "types", "code"), pa.string())
        pieces = {"pieces": pa.list_(pa.binary())}
        writer.put_table(VALUES, pa.Table.from_pylist(held, pa.schema({**texts, **pieces})))


def _judgement(story: Story, how: str, overhead: float | None) -> list[str]:
    """What the reader should know about how it went."""
    notes: list[Any] = []
    if story.start_ns is None:
        notes.append(NEVER_STARTED)
    elif story.end_ns is None:
        notes.append(
            how
            or "The program ended without its exit handlers: its last two seconds of steps may be missing."
        )
    if overhead and story.tracing_share is not None and story.tracing_share > overhead > 0:
        share, allowed = fmt_share(story.tracing_share), fmt_share(overhead)
        if share != allowed:
            notes.append(
                f"Tracing took {share} of the time, more than the {allowed} allowed: the run was too short."
            )
    return notes


def _mixed_up(writer: RecordingWriter, story: Story) -> list[str]:
    """Processes whose energy the monitor has not told from that of the program itself."""
    if not any(Device.parse(one.device).kind == "CPU" for one in writer.info.domains):
        return []
    said = [HELPERS] if story.helped else []
    if story.fed_by:
        shares = Recording.open(writer.path, salvage=True).shares()
        said += [] if any(one.loading.any() for one in shares.values()) else [WORKERS]
    return said


def _too_soon(story: Story, steps: Sequence[Step], overhead: float | None) -> list[str]:
    """A few steps of a framework, and nothing that kept them from being traced but their number."""
    could = bool(overhead and story.versions and steps) and not story.warnings
    return [TOO_SOON] if could and not any(step[3] == TRACED for step in steps) else []
