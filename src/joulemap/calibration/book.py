"""Costs that were calibrated, kept in the user's cache folder and in the recordings that they were made for.

A cost belongs to one machine, one device, one driver, one version of the framework, and settings of it that
choose between algorithms.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from joulemap.baselines import cache_folder
from joulemap.calibration.clocks import Response, at_clocks, response
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.devices import Device
from joulemap.errors import InputError
from joulemap.units import fmt_share

_FORMAT = 1
MOST_OF_OTHERS = 0.1
"""Where others used more of a device, it is said."""


class Damaged(InputError):
    """The book of costs is not what was written."""


@dataclass(frozen=True)
class Calibration:
    """What operations cost on one device, and what it draws while it waits for the next one."""

    device: str
    idle_w: float
    costs: Mapping[Operation, Cost]
    skipped: Mapping[Operation, str] = field(default_factory=dict)
    """What could not be replayed, and why."""
    response: Response | None = None
    """How costs go with clocks; None where nothing lowered them."""
    domain: str = ""
    """Whose meter was read: memory beside a CPU has one of its own. Older ones say nothing of it."""
    others: float = 0.0
    """What part of the processors' time other processes had while operations were replayed on a CPU."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Other devices that a recording has, of the same model, which take the same; and whose meters they are
    read by."""

    @property
    def is_of_cpu(self) -> bool:
        return Device.parse(self.device).kind == "CPU"

    @property
    def idle_weight(self) -> dict[str, float]:
        """What waiting weighs in the accounting, by the domain."""
        return dict.fromkeys((self.domain or self.device, *self.alike.values()), self.idle_w)

    @property
    def devices(self) -> list[str]:
        """All that have these costs; they were measured on the first."""
        return [self.device, *self.alike]

    def on(self, device: str) -> Calibration:
        """What one of them takes."""
        domain = self.domain if device == self.device else self.alike[device]
        return replace(self, device=device, domain=domain, alike={})

    def remarks(self, again: str = "Calibrate with --again when they have ended.") -> list[str]:
        """What to say where others used the device: what they do to caches and clocks is in the costs. And
        how to measure ``again``."""
        if self.others <= MOST_OF_OTHERS:
            return []
        return [
            f"Other processes had {fmt_share(self.others)} of the processors' time while operations were "
            f"replayed: costs may be further off than their intervals say. {again}"
        ]

    def at(self, clock_mhz: float) -> Calibration:
        """What the operations cost at these clocks."""
        costs = {one: at_clocks(cost, clock_mhz, self.response) for one, cost in self.costs.items()}
        return replace(self, costs=costs)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "device": self.device,
            "domain": self.domain,
            "idle_w": self.idle_w,
            "costs": [{"operation": one.key, **cost.to_json()} for one, cost in self.costs.items()],
            "skipped": [{"operation": one.key, "why": why} for one, why in self.skipped.items()],
            "response": None if self.response is None else self.response.to_json(),
            "others": self.others,
            "alike": dict(self.alike),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Calibration:
        if content["format"] > _FORMAT:
            raise InputError("The calibration was written by a newer joulemap.", "Upgrade joulemap.")
        costs = {Operation.from_key(one["operation"]): Cost.from_json(one) for one in content["costs"]}
        skipped = {Operation.from_key(one["operation"]): str(one["why"]) for one in content["skipped"]}
        response = Response.from_json(content.get("response"))
        domain = str(content.get("domain", ""))
        others, alike = float(content.get("others", 0.0)), dict(content.get("alike", {}))
        device, idle_w = str(content["device"]), float(content["idle_w"])
        return cls(device, idle_w, costs, skipped, response, domain, others, alike)

    def without(self, operations: Collection[Operation]) -> Calibration:
        """The same without the costs of some operations."""
        costs = {one: cost for one, cost in self.costs.items() if one not in operations}
        return replace(self, costs=costs)

    def refined(self, later: Calibration) -> Calibration:
        """Both, with what the later one tells of costs that are there already."""
        again = {one: self.costs[one].refined(cost) for one, cost in later.costs.items() if one in self.costs}
        return self.joined(replace(later, costs={**later.costs, **again}))

    def joined(self, later: Calibration) -> Calibration:
        """Both, the later one where they differ."""
        skipped = {one: why for one, why in self.skipped.items() if one not in later.costs}
        costs = {**self.costs, **later.costs}
        return Calibration(
            self.device,
            later.idle_w,
            costs,
            {**skipped, **later.skipped},
            response(costs.values()) or later.response or self.response,
            later.domain,
            max(self.others, later.others) if self.costs else later.others,
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """What costs belong to."""

    machine: str
    device: str
    driver: str
    framework: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The framework's settings that choose between algorithms."""

    @property
    def key(self) -> str:
        said = json.dumps(self.flags, sort_keys=True).encode()
        settings = f"settings {sha256(said).hexdigest()[:8]}" if self.flags else "settings unknown"
        return " | ".join((self.machine, self.device, self.driver or "no driver", self.framework, settings))


class Book:
    """The file that holds them. Where it cannot be written, ``problem`` says why. ``reused`` are operations
    of the last recording whose costs were known before it was calibrated."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder()) / "calibrations.json"
        self.problem: InputError | None = None
        self.reused: Collection[Operation] = ()

    def find(self, shelf: Shelf) -> Calibration | None:
        """What is known of a device; None where nothing is."""
        return self._read().get(shelf.key)

    def all_of(self, machine: str) -> dict[str, Calibration]:
        """Everything that is known on a machine, by what it belongs to."""
        return {key: one for key, one in self._read().items() if key.startswith(f"{machine} | ")}

    def add(self, shelf: Shelf, found: Calibration, anew: Collection[Operation] = ()) -> Calibration:
        """Keep what was found beside what there is, but for what was to be found ``anew``; all that is known
        then, kept or not."""
        try:
            with self._alone():
                known = self._with(shelf, found, anew)
                self._write(known)
        except InputError as error:
            self.problem = error
            known = self._with(shelf, found, anew)
        return known[shelf.key]

    def _with(self, shelf: Shelf, found: Calibration, anew: Collection[Operation]) -> dict[str, Calibration]:
        shelves = self._read()
        before = shelves.get(shelf.key)
        return {**shelves, shelf.key: found if before is None else before.without(anew).refined(found)}

    def clear(self, machine: str) -> int:
        """Forget what is known on a machine; how many costs there were. What cannot be read is forgotten as
        a whole."""
        if not self.path.exists():
            return 0
        with self._alone():
            try:
                kept = self._read()
            except Damaged:
                self.path.unlink()
                return 0
            gone = [kept.pop(key) for key in list(kept) if key.startswith(f"{machine} | ")]
            if gone:
                self._write(kept)
        return sum(len(one.costs) for one in gone)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else changes it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("w")
        except OSError as error:
            raise self._not_written(error) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, Calibration]:
        try:
            shelves = json.loads(self.path.read_text())["shelves"]
            return {key: Calibration.from_json(content) for key, content in shelves.items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(
                f"{self.path} is damaged.", "joulemap calibrate --clear deletes it; then calibrate again."
            ) from error

    def _write(self, shelves: Mapping[str, Calibration]) -> None:
        """Whole or not at all: written beside it, then put in its place."""
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        content = {"format": _FORMAT, "shelves": {key: one.to_json() for key, one in shelves.items()}}
        try:
            beside.write_text(json.dumps(content, allow_nan=False) + "\n")
            beside.replace(self.path)
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> InputError:
        return InputError(
            f"{self.path} cannot be written: {error.strerror}.", "Set XDG_CACHE_HOME to a folder of yours."
        )


def described(operations: Iterable[Operation]) -> list[str]:
    """Operations in words, for people: ``addmm [768], [4096, 768], [768, 3072]``."""
    return [f"{one.op.rpartition('::')[2]} {_shapes(one.shapes)}".strip() for one in operations]


def _shapes(text: str) -> str:
    try:
        shapes = json.loads(text)
    except ValueError:
        return text
    return ", ".join(_shape(shape) for shape in shapes if shape)


def _shape(shape: Sequence[Any]) -> str:
    """A list of tensors may have hundreds."""
    return f"{len(shape)} tensors" if isinstance(shape[0], list) else str(shape)
