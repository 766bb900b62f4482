"""Lightning: ``Trainer(callbacks=[joulemap.lightning.EnergyCallback()])``, of either package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from joulemap.epochs import EpochEnergy, own_accelerators
from joulemap.meters.meter import Meter

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class EnergyCallback(Callback):  # type: ignore[misc]
    """Logs ``energy_j``, ``energy_per_batch_j`` and ``power_w`` of each epoch of training, so that they stand
    in every logger and in ``trainer.callback_metrics``.

    Validation is left out. They are this program's part of what the meters of this machine show, or of an
    estimate where there are none (``joulemap doctor`` says which). In a job of several processes each counts
    its own part of the CPUs and the GPU that it trains on. ``meters`` are those to read, by default all that
    work here. It works for ``lightning`` and for ``pytorch_lightning``.
    """

    def __init__(self, meters: Sequence[Meter] | None = None) -> None:
        super().__init__()
        self._epoch = EpochEnergy(meters)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch begins."""
        self._epoch.begin(own_accelerators(trainer.strategy.root_device, trainer.world_size))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch has ended."""
        self._epoch.batch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation is not training, even in the middle of an epoch."""
        self._epoch.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Training goes on."""
        self._epoch.resume()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The epoch has ended: say what it drew."""
        energy = self._epoch.end()
        if energy is not None:
            pl_module.log_dict(energy.logs())

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let go of the meters."""
        self._epoch.close()
