"""The monitor of a recording, which may fail to start, and may die: the program goes on in any case."""

from __future__ import annotations

import os
from dataclasses import dataclass

from joulemap.errors import MeterError
from joulemap.monitor.child import MonitorHandle, start_monitor
from joulemap.monitor.settings import EVERY_METER
from joulemap.recorder.ranks import Launcher, Rank
from joulemap.recording import RecordingWriter

METERS = "JOULEMAP_METERS"
"""Names the meters to use, ``module:function``, in place of every one that works here."""


@dataclass(frozen=True)
class Metering:
    """A monitor, or none."""

    monitor: MonitorHandle | None

    @classmethod
    def of(cls, writer: RecordingWriter, rank: Rank | None) -> Metering:
        """Of our child's program, or of one process of a job: the first on a machine has it metered, for the
        whole family of their launcher. What a program used is known to its parent when it has ended."""
        if rank is None:
            return cls.start(writer, os.getpid())
        return cls.start(writer, Launcher.of().pid) if rank.meters else cls(None)

    @classmethod
    def start(cls, writer: RecordingWriter, program_pid: int | None = None) -> Metering:
        """Start a monitor; where it cannot, the recording says why and has no power."""
        meters = os.environ.get(METERS) or EVERY_METER
        try:
            monitor = start_monitor(writer.path, program_pid=program_pid, meters=meters)
        except (MeterError, OSError) as error:
            writer.warn(f"Nothing is metered. {error}")
            return cls(None)
        writer.update(domains=list(monitor.domains))
        return cls(monitor)

    def stop(self, writer: RecordingWriter) -> None:
        """End it, and keep what it has to say."""
        if self.monitor is None:
            return
        report = self.monitor.stop()
        anchors = [*writer.info.anchors, report.anchor] if report.anchor is not None else writer.info.anchors
        writer.update(warnings=[*writer.info.warnings, *report.notes], anchors=anchors)
