"""A convolutional classifier with batch normalisation and dropout, on two threads: train, test, predict."""

import torch
from torch import nn
from toys import images, show

torch.manual_seed(1)
torch.set_num_threads(2)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(144, 4),
)
learning = torch.optim.Adam(model.parameters(), 1e-3)
error = nn.CrossEntropyLoss()


def batches(count, seed=0):
    """Pictures with the channel first, and their labels."""
    pictures, labels = images(count, seed=seed)
    pictures = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    return zip(pictures.split(32), torch.from_numpy(labels).long().split(32), strict=True)


for epoch in range(3):
    for pictures, labels in batches(256):
        loss = error(model(pictures), labels)
        learning.zero_grad()
        loss.backward()
        learning.step()
    show(f"epoch {epoch}", loss.item())
model.eval()
with torch.no_grad():
    for pictures, labels in batches(64, seed=1):
        scores = model(pictures)
        show("test", error(scores, labels).item(), scores)
print(torch.get_num_threads(), [name for name, _ in model.named_buffers()])
