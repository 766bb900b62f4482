"""DataLoaders with workers: a sampler, a collate function, seeded chance, an iterable that is shared out."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info
from toys import images, show


class Pictures(Dataset):
    """Pictures that are turned by chance when they are looked at."""

    def __init__(self):
        self.pictures, self.labels = images(96)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, number):
        return np.roll(self.pictures[number], random.randrange(3), 1), self.labels[number]


class Numbers(IterableDataset):
    """Numbers, of which every worker takes its part."""

    def __iter__(self):
        worker = get_worker_info()
        yield from range(worker.id, 40, worker.num_workers)


def collate(examples):
    """A batch with the channel first."""
    pictures, labels = zip(*examples, strict=True)
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2), torch.tensor(labels).long()


def fail(examples):
    """What a worker dies of."""
    raise ZeroDivisionError(len(examples))


torch.manual_seed(8)
chance = torch.Generator().manual_seed(1)
sampler = WeightedRandomSampler(torch.rand(96, generator=chance), 96, generator=chance)
batches = DataLoader(
    Pictures(), 16, sampler=sampler, num_workers=2, collate_fn=collate, generator=chance,
    persistent_workers=True, worker_init_fn=lambda number: random.seed(number),
)  # fmt: skip
model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 4))
learning = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(2):
    for pictures, labels in batches:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        learning.zero_grad()
        loss.backward()
        learning.step()
    show(f"epoch {epoch}", loss.item(), pictures)
show("numbers", *DataLoader(Numbers(), 8, num_workers=2))
try:
    next(iter(DataLoader([1, 2], num_workers=1, collate_fn=fail)))
except ZeroDivisionError as error:
    print("caught", str(error).splitlines()[0])
