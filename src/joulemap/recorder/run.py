"""A program as a child, a monitor beside it, and a recording of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from joulemap.calls.protocol import ISOLATION, Protocol
from joulemap.errors import JoulemapError
from joulemap.recorder.budget import Plan
from joulemap.recorder.child import Program, how_it_ended
from joulemap.recorder.finish import finish
from joulemap.recorder.gatekeeper import Gatekeeper
from joulemap.recorder.host import host, versions
from joulemap.recorder.metering import Metering
from joulemap.recorder.ranks import Launcher, Rank, launcher_notes
from joulemap.recorder.settings import CallSettings, Settings
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.recording.folder import RAW
from joulemap.recording.info import LAUNCHER
from joulemap.units import NS_PER_S

_REPORT = "What was recorded is kept. Please report this: it is a bug in joulemap."


@dataclass(frozen=True)
class Ran:
    """How it went: the program's exit code (minus its signal), how long it ran from its first line to the end
    of its process, and what was wrong with the recording."""

    path: Path
    code: int
    seconds: float
    problem: JoulemapError | None = None


def run(
    arguments: Sequence[str],
    path: Path,
    plan: Plan,
    *,
    overwrite: bool = False,
    output_to_errors: bool = False,
    watching: Callable[[], AbstractContextManager[Callable[[float], None] | None]] | None = None,
    calls: CallSettings | None = None,
    protocol: Protocol | None = None,
    experiment: Path | None = None,
    caches: int | None = None,
) -> Ran:
    """Run ``python ARGUMENTS…`` under accounting. Whatever fails on our side, the program runs to its end.

    ``calls`` says which libraries' calls are metered, ``protocol`` how they are isolated. ``watching``
    opens a progress bar for the reading of the traces afterwards. ``output_to_errors`` keeps standard output
    for ourselves. ``experiment`` is the folder where the program finds orders. The step
    ``caches`` is looked at for what a GPU has in its cache."""
    rank = Rank.of()
    writer = RecordingWriter.create(path, _info(arguments, rank), overwrite=overwrite)
    program = Program(_with_sites(arguments, writer, calls), output_to_errors)
    metering = Metering.of(writer, rank)
    if rank is not None and (metering.monitor is not None or not rank.meters):
        writer.warn(rank.note(path))
    keeper = None if protocol is None else _gatekeeper(writer, protocol, metering)
    begin_ns = time.monotonic_ns()
    orders = None if experiment is None else str(experiment.absolute())
    program.go(Settings(str((path / RAW).absolute()), plan, calls, orders, caches).to_json())
    code = program.wait()
    seconds, ended_ns = (time.monotonic_ns() - begin_ns) / NS_PER_S, time.time_ns()
    try:
        metering.stop(writer)
        for note in keeper.stop() if keeper is not None else ():
            writer.warn(note)
        overhead = None if plan.trace_all or plan.steps else plan.overhead
        with watching() if watching else nullcontext() as progress:
            finish(writer, ended_ns, how=how_it_ended(code), overhead=overhead, progress=progress)
    except JoulemapError as error:
        return Ran(path, code, seconds, error)
    except Exception as error:  # noqa: BLE001 - the program's exit code comes first, whatever happens to us
        problem = JoulemapError(f"The recording could not be finished: {error!r}.", _REPORT)
        return Ran(path, code, seconds, problem)
    return Ran(path, code, seconds)


def _with_sites(
    arguments: Sequence[str], writer: RecordingWriter, calls: CallSettings | None
) -> Sequence[str]:
    """The same program with its script compiled for us, where calls are metered and it is a script."""
    if calls is None:
        return arguments
    writer.update(extra={**writer.info.extra, "calls": asdict(calls)})
    if not calls.script or not Path(calls.script).is_file():
        return arguments
    from joulemap.calls.main import Patched, prepare

    raw = (writer.path / RAW).absolute()
    try:
        raw.mkdir(parents=True, exist_ok=True)
        return [str(prepare(calls.script, raw)), *arguments[1:]]
    except (SyntaxError, Patched):  # Python will say so; sites that are there do it themselves
        return arguments
    except Exception as error:  # noqa: BLE001 - the program is run, measured or not
        writer.warn(f"The calls of {calls.script} are not measured: {error!r}")
        return arguments


def _gatekeeper(writer: RecordingWriter, protocol: Protocol, metering: Metering) -> Gatekeeper:
    """Whom the program asks for calm around its calls."""
    writer.update(extra={**writer.info.extra, ISOLATION: protocol.to_json()})
    return Gatekeeper(writer.path, protocol, metering.monitor is not None).start()


def _info(arguments: Sequence[str], rank: Rank | None) -> RecordingInfo:
    return RecordingInfo(
        command=["joulemap", "run", *arguments],
        host=host(),
        versions=versions(),
        warnings=launcher_notes(arguments),
        rank=None if rank is None else rank.rank,
        world_size=None if rank is None else rank.world_size,
        job={} if rank is None else {**rank.job, LAUNCHER: str(Launcher.of())},
    )
