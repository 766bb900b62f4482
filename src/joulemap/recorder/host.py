"""What a recording says about where it was made: enough to tell whether two of them can be compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from joulemap import __version__
from joulemap.baselines import machine


def host() -> dict[str, Any]:
    """This machine."""
    return {
        "machine": machine(),
        "name": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        **({"driver": found} if (found := gpu_driver()) else {}),
    }


def gpu_driver(modules: Path = Path("/sys/module")) -> str:
    """The version of the GPUs' driver; nothing where there is none, or it does not say."""
    versions = [
        path for path in (modules / name / "version" for name in ("nvidia", "amdgpu")) if path.exists()
    ]
    return " ".join(f"{path.parent.name} {path.read_text().strip()}" for path in versions)


def versions() -> dict[str, str]:
    """What has to do with the measuring; frameworks are added when the program imports them."""
    return {"joulemap": __version__, "python": platform.python_version()}


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
