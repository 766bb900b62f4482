"""Keras 3: ``model.fit(…, callbacks=[joulemap.keras.EnergyCallback()])``."""

from __future__ import annotations

import keras

from joulemap.epochs import EnergyLogs


class EnergyCallback(EnergyLogs, keras.callbacks.Callback):  # type: ignore[misc]
    """Logs ``energy_j``, ``energy_per_batch_j`` and ``power_w`` of each epoch, so that they stand in the
    progress bar, in ``History`` and, where its callback comes after this one, in TensorBoard.

    They are this program's part of what the meters of this machine show, or of an estimate where there are
    none (``joulemap doctor`` says which). A batch's energy is the mean of its epoch so far: a batch is often
    shorter than a meter's update. ``meters`` are those to read, by default all that work here.
    """
