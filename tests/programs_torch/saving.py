"""Saves everything in the middle of training, loads it into fresh objects, and goes on to the same end."""

import copy
import io
import pickle

import torch
from torch import nn
from toys import points, show

inputs, targets = (torch.from_numpy(part) for part in points(128))


class Net(nn.Module):
    """Something with parameters, buffers and state of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 2)
        self.seen = 0

    def forward(self, places):
        return self.head(self.body(places))

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def make():
    """A model, its optimizer and its schedule, as they are at first."""
    model = Net()
    learning = torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True)
    return model, learning, torch.optim.lr_scheduler.OneCycleLR(learning, 0.05, total_steps=16)


def learn(model, learning, rate, start):
    """Half of the training."""
    for places, sides in zip(inputs[start:].split(16)[:4], targets[start:].long().split(16)[:4], strict=True):
        loss = nn.functional.cross_entropy(model(places), sides)
        learning.zero_grad()
        loss.backward()
        learning.step()
        rate.step()
        model.seen += len(places)
    show("loss", loss.item(), model.seen)


torch.manual_seed(18)
whole = make()
learn(*whole, 0)
torch.save({"parts": [part.state_dict() for part in whole], "chance": torch.get_rng_state()}, "half.pt")
learn(*whole, 64)
kept = torch.load("half.pt", weights_only=True)
again = make()
for part, state in zip(again, kept["parts"], strict=True):
    part.load_state_dict(state)
torch.set_rng_state(kept["chance"])
learn(*again, 64)
copies = [copy.deepcopy(again[0]), pickle.loads(pickle.dumps(again[0]))]
memory = io.BytesIO()
torch.save(again[0], memory)
memory.seek(0)
copies.append(torch.load(memory, weights_only=False))
for model in (whole[0], again[0], *copies):
    model.eval()
    with torch.no_grad():
        show("scores", model(inputs))
averaged = torch.optim.swa_utils.AveragedModel(whole[0])
averaged.update_parameters(copies[0])
torch.save(averaged.state_dict(), "averaged.pt")
print(sorted(averaged.state_dict())[:3], list(vars(copies[0]))[:6])
