"""Hugging Face: ``Trainer(…, callbacks=[joulemap.transformers.EnergyCallback()])``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from joulemap.epochs import Energy, EpochEnergy, own_accelerators
from joulemap.meters.meter import Meter


class EnergyCallback(TrainerCallback):  # type: ignore[misc]
    """Adds ``energy_j``, ``energy_per_step_j`` and ``power_w`` to the logs of training, and with
    ``include_num_input_tokens_seen`` ``energy_per_token_j``, so that they stand in what is printed and in
    ``trainer.state.log_history``.

    Beside a ``loss`` they are those since the log before, as the loss is; beside ``train_runtime`` they are
    those of the whole training. Evaluations and checkpoints are left out. They are this program's part of
    what the meters of this machine show, or of an estimate where there are none (``joulemap doctor`` says
    which). In a job of several processes each logs its own: its part of the CPUs, the GPU that it trains on,
    and its tokens. ``meters`` are those to read, by default all that work here.
    """

    def __init__(self, meters: Sequence[Meter] | None = None) -> None:
        super().__init__()
        self._stretch = EpochEnergy(meters)
        self._drawn: list[Energy] = []
        self._first_token = self._last_token = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or goes on from a checkpoint; its first step is yet to come."""
        self._drawn.clear()
        self._first_token = self._last_token = state.num_input_tokens_seen
        self._stretch.begin(own_accelerators(args.device, args.world_size))
        self._stretch.pause()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Whatever came between the steps is over."""
        self._stretch.resume()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An optimizer step is done; an evaluation or a checkpoint may follow."""
        self._stretch.batch()
        self._pause_for(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An evaluation or a checkpoint may follow."""
        self._pause_for(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Training logs what it did: since the last time, or in all."""
        if logs is None or not ("loss" in logs or "train_runtime" in logs):
            return
        stretch, tokens = self._stretch.end(), state.num_input_tokens_seen
        self._drawn += [stretch] if stretch else []
        energy = stretch if "loss" in logs else _sum(self._drawn)
        since = self._last_token if "loss" in logs else self._first_token
        self._last_token = tokens
        if energy is not None:
            ours = _logs(energy, (tokens - since) / args.world_size)  # the trainer counts all processes'
            logs.update(ours)
            state.log_history[-1].update(ours)  # the trainer has put a copy of the logs there already

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the meters."""
        self._stretch.close()

    def _pause_for(self, control: TrainerControl) -> None:
        if control.should_evaluate or control.should_save:
            self._stretch.pause()


def _sum(parts: Sequence[Energy]) -> Energy | None:
    if not parts:
        return None
    return Energy(
        sum(part.energy_j for part in parts),
        sum(part.seconds for part in parts),
        sum(part.batches for part in parts),
    )


def _logs(energy: Energy, tokens: float) -> dict[str, float]:
    logs = {"energy_j": energy.energy_j, "energy_per_step_j": energy.batch_j, "power_w": energy.power_w}
    return {**logs, "energy_per_token_j": energy.energy_j / tokens} if tokens > 0 else logs
