"""Hugging Face's Trainer: a small BERT with evaluation, a checkpoint, and a callback of its own."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from toys import sequences, show
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers import logging as transformers_logging

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()
tokens, targets = sequences(32)
data = [{"input_ids": row, "labels": int(target % 2)} for row, target in zip(tokens, targets, strict=True)]


class Listener(TrainerCallback):
    """Says what happens when."""

    def on_step_end(self, args, state, control, **kwargs):
        print("step", state.global_step)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        show("evaluated", metrics["eval_loss"])


torch.manual_seed(21)
config = BertConfig(
    vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    max_steps=4,
    eval_strategy="steps",
    eval_steps=2,
    save_steps=4,
    logging_steps=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    seed=21,
)
trainer = Trainer(
    BertForSequenceClassification(config),
    arguments,
    train_dataset=data,
    eval_dataset=data[:8],
    callbacks=[Listener()],
)
show("loss", trainer.train().training_loss)
show("scores", trainer.predict(data[:8]).predictions)
print([entry["loss"].hex() for entry in trainer.state.log_history if "loss" in entry])
