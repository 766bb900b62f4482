"""Threads: two models learn at once, and a pool asks a third one, which a thread shares with the main one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from toys import points, show

torch.set_num_threads(1)
inputs, targets = (torch.from_numpy(part) for part in points(128))


def make(seed):
    """A model with weights of its own: seeds are global, so they are set one after the other."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def learn(model, losses):
    """Trains without a look at the others."""
    learning = torch.optim.SGD(model.parameters(), 0.1)
    for places, sides in zip(inputs.split(16), targets.long().split(16), strict=True):
        loss = nn.functional.cross_entropy(model(places), sides)
        learning.zero_grad()
        loss.backward()
        learning.step()
        losses.append(loss.item())


def ask(model, start):
    """What the model thinks of some points; gradients are off in this thread alone."""
    with torch.no_grad():
        return model(inputs[start : start + 16]), torch.is_grad_enabled()


models = [make(seed) for seed in (12, 13, 14)]
losses = [[], []]
threads = [threading.Thread(target=learn, args=pair) for pair in zip(models[:2], losses, strict=True)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
show("losses", *losses)
with ThreadPoolExecutor(3) as pool:
    answers = list(pool.map(lambda start: ask(models[2], start), range(0, 128, 16)))
show("answers", *(scores for scores, _ in answers))
print({enabled for _, enabled in answers}, torch.is_grad_enabled(), threading.active_count() - 1 <= 3)
learn(models[2], losses[0])
show("main", losses[0])
