"""Calls of a library's API, metered from inside the program that is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from joulemap.calls import runtime
from joulemap.calls.fences import fence
from joulemap.calls.isolation import Gate
from joulemap.calls.loader import SiteLoader
from joulemap.calls.main import CODE, Main
from joulemap.recorder.settings import CallSettings


class CallRecorder:
    """The sites of a program and their meter, for as long as it is recorded."""

    def __init__(
        self, raw: Path, settings: CallSettings, offset_ns: int, warn: Callable[[str], None]
    ) -> None:
        said: set[str] = set()

        def once(text: str) -> None:
            if text not in said:
                said.add(text)
                warn(text)

        self._settings = settings
        self._raw = raw
        self._offset_ns = offset_ns
        self._meter = runtime.CallMeter(raw, settings.libraries, offset_ns, once)
        self._loader = SiteLoader(
            self._meter.places,
            once,
            root=settings.root,
            packages=settings.packages,
            libraries=settings.libraries,
        )

    def start(self) -> None:
        """Before the program's first line."""
        if (self._raw / CODE).exists():
            Main(self._raw, self._settings.script).restore(self._meter.places, self._loader.add)
        runtime.fence = fence if self._settings.fence else None
        if self._settings.patience_s is not None:
            runtime.isolation = Gate(self._raw, self._now_ns, self._settings.patience_s)
        self._meter.start()
        self._loader.start()

    def stop(self) -> None:
        """After its last."""
        self._loader.stop()
        self._meter.stop()
        runtime.fence = runtime.isolation = None

    def _now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()
