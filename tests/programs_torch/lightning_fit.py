"""Lightning: fit with validation, a test, checkpoints and a CSV log, and a callback of its own."""

import logging
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toys import points, show

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Classifier(LightningModule):
    """A small model that knows how to learn."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, number):
        places, sides = batch
        loss = nn.functional.cross_entropy(self.net(places), sides.long())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        places, sides = batch
        self.log("right", (self.net(places).argmax(-1) == sides).float().mean())

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


class Listener(Callback):
    """Says what happens when."""

    def on_train_epoch_end(self, trainer, module):
        show(f"epoch {trainer.current_epoch}", trainer.callback_metrics["loss"].item())


seed_everything(22, verbose=False)
data = TensorDataset(*(torch.from_numpy(part) for part in points(96)))
trainer = Trainer(
    accelerator="cpu",
    max_epochs=2,
    log_every_n_steps=1,
    logger=CSVLogger(".", "logs", version=0),
    callbacks=[Listener(), ModelCheckpoint("kept", filename="last")],
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
trainer.fit(model, DataLoader(data, 16), DataLoader(data, 32))
print(trainer.test(model, DataLoader(data, 32), verbose=False))
show("weights", *(weight.detach() for weight in model.parameters()))
