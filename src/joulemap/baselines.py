"""Idle baselines of machines, kept in the user's cache folder.

A baseline belongs to one machine, one domain and one sensor: the same GPU read through another sensor may
well show another power. ``joulemap calibrate --idle`` writes them, ``joulemap show --net`` may use them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulemap.accounting.baseline import Baseline
from joulemap.devices import Domain
from joulemap.errors import InputError

_FORMAT = 1
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class StoredBaseline:
    """A baseline with the sensor that showed it, whether it was measured, and when (epoch ns)."""

    baseline: Baseline
    sensor: str
    provenance: str
    taken_ns: int

    def to_json(self) -> dict[str, Any]:
        """Flat: the baseline's own keys beside the others."""
        content = dataclasses.asdict(self)
        return {**content.pop("baseline"), **content}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StoredBaseline:
        keys = [column.name for column in dataclasses.fields(Baseline)]
        baseline = Baseline(**{key: content[key] for key in keys})
        return cls(baseline, content["sensor"], content["provenance"], content["taken_ns"])


def machine(machine_id: Path = _MACHINE_ID) -> str:
    """A name for this machine that is the same tomorrow: its host name, and a hash of its id where it has
    one. The id itself is not to leave the machine, and recordings do."""
    try:
        number = machine_id.read_text().strip()
    except OSError:
        number = ""
    digest = hashlib.sha256(f"joulemap {number}".encode()).hexdigest()[:12] if number else ""
    return f"{platform.node()}-{digest}" if digest else platform.node()


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/joulemap``, else ``~/.cache/joulemap``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "joulemap"


class Baselines:
    """The file that holds them, for all machines that share the folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder()) / "baselines.json"

    def all_of(self, machine_name: str) -> list[StoredBaseline]:
        """Those of one machine, in the order in which they were first stored."""
        return [StoredBaseline.from_json(content) for content in self._read().get(machine_name, {}).values()]

    def find(self, machine_name: str, domain: Domain) -> StoredBaseline | None:
        """The baseline of this domain as this sensor shows it."""
        content = self._read().get(machine_name, {}).get(_key(domain.name, domain.sensor))
        return None if content is None else StoredBaseline.from_json(content)

    def put(self, machine_name: str, domain: Domain, baseline: Baseline, taken_ns: int | None = None) -> None:
        """Keep a baseline, in place of an earlier one."""
        machines = self._read()
        when_ns = time.time_ns() if taken_ns is None else taken_ns
        stored = StoredBaseline(baseline, domain.sensor, domain.provenance, when_ns)
        machines.setdefault(machine_name, {})[_key(domain.name, domain.sensor)] = stored.to_json()
        self._write(machines)

    def clear(self, machine_name: str) -> int:
        """Forget those of one machine; how many there were."""
        machines = self._read()
        gone = machines.pop(machine_name, {})
        if gone:
            self._write(machines)
        return len(gone)

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        hint = f"Delete {self.path} and calibrate again."
        try:
            content = json.loads(self.path.read_text())
            if content["format"] > _FORMAT:
                raise InputError(f"{self.path} was written by a newer joulemap.", "Upgrade joulemap.")
            machines: dict[str, dict[str, dict[str, Any]]] = content["machines"]
            for stored in machines.values():
                for one in stored.values():
                    StoredBaseline.from_json(one)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.path} is damaged.", hint) from error
        return machines

    def _write(self, machines: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Whole or not at all: written beside it, then put in its place."""
        text = json.dumps({"format": _FORMAT, "machines": machines}, indent=1, allow_nan=False)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text + "\n")
            beside.replace(self.path)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written: {error.strerror}.",
                "Set XDG_CACHE_HOME to a folder of yours.",
            ) from error


def _key(domain: str, sensor: str) -> str:
    return f"{domain} | {sensor}"
