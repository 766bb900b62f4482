"""Energy by epoch, as the training callbacks of all frameworks log it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from joulemap.devices import Device
from joulemap.energy import EnergyReader, Reading
from joulemap.errors import JoulemapError
from joulemap.meters.meter import Meter

EVERY_S = 0.5
"""How often the meters are read at most: a GPU's counter blocks for 4 ms and has news every 100 ms."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Of an epoch so far: what it drew, in what time, and over how many batches."""

    energy_j: float
    seconds: float
    batches: int

    @property
    def batch_j(self) -> float:
        """What that is for one batch."""
        return self.energy_j / max(self.batches, 1)

    @property
    def power_w(self) -> float:
        """The mean power."""
        return self.energy_j / self.seconds

    def logs(self) -> dict[str, float]:
        """As they stand beside loss and accuracy."""
        return {"energy_j": self.energy_j, "energy_per_batch_j": self.batch_j, "power_w": self.power_w}


class EpochEnergy:
    """Counts the energy of epochs and batches. Without a meter it stays silent, and training goes on.

    A batch is often shorter than a meter's update, so its energy is the epoch's mean, never the noise of one
    reading. What is drawn between ``pause`` and ``resume`` is not the epoch's.
    """

    def __init__(self, meters: Sequence[Meter] | None = None, every_s: float = EVERY_S) -> None:
        self._meters, self._every_s = meters, every_s
        self._reader: EnergyReader | None = None
        self._last: Reading | None = None
        self._paused = False
        self._energy_j = self._seconds = 0.0
        self._batches = self._known_batches = 0
        self._read_s = 0.0

    def begin(self, accelerators: Collection[Device] | None = None) -> None:
        """An epoch begins. Of GPUs and the like only ``accelerators`` count, where they are given."""
        if self._reader is None:
            with suppress(JoulemapError, OSError):
                self._reader = EnergyReader(self._meters, accelerators)
        self._paused, self._last = False, self._read()
        self._forget()

    def batch(self) -> Energy | None:
        """A batch has ended. What is known by now; the meters are read only now and then."""
        self._batches += 1
        if time.monotonic() - self._read_s >= self._every_s:
            self._update()
        return self._known()

    def pause(self) -> None:
        """Something else begins that is not the epoch's, such as an evaluation."""
        if not self._paused:
            self._update()
            self._paused = True

    def resume(self) -> None:
        """The epoch goes on."""
        if self._paused:
            self._paused, self._last = False, self._read()

    def end(self) -> Energy | None:
        """The epoch has ended: all of it. Without another ``begin``, the next one follows it at once."""
        self._update()
        energy = self._known()
        self._forget()
        return energy

    def close(self) -> None:
        """Training has ended; another one may begin."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _known(self) -> Energy | None:
        return Energy(self._energy_j, self._seconds, self._known_batches) if self._seconds else None

    def _forget(self) -> None:
        self._energy_j = self._seconds = 0.0
        self._batches = self._known_batches = 0

    def _update(self) -> None:
        if not self._paused and (now := self._read()) is not None:
            if self._last is not None:
                self._energy_j += now.energy_j - self._last.energy_j
                self._seconds += now.seconds - self._last.seconds
            self._last = now
        self._known_batches = self._batches

    def _read(self) -> Reading | None:
        self._read_s = time.monotonic()
        if self._reader is not None:
            with suppress(JoulemapError, OSError):
                return self._reader.read()
        return None


def own_accelerators(device: object, world_size: int) -> list[Device] | None:
    """What a process of a job counts beside its part of the CPUs: as one of several the GPU that it trains
    on, if any, since the others are counted by theirs; None, which is all that it sees, where it is alone."""
    if world_size <= 1:
        return None
    own = Device.parse(str(device))
    return [] if own.kind == "CPU" else [own]


class EnergyLogs:
    """What a training callback of Keras does, whichever Keras it is: to be mixed into its ``Callback``."""

    def __init__(self, meters: Sequence[Meter] | None = None) -> None:
        super().__init__()
        self._epoch = EpochEnergy(meters)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        _log(self._epoch.batch(), logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        _log(self._epoch.end(), logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._epoch.close()


def _log(energy: Energy | None, logs: dict[str, Any] | None) -> None:
    if energy is not None and logs is not None:
        logs.update(energy.logs())
