"""A small residual network in PyTorch that learns to tell shapes apart, on pictures that workers draw.

    python cnn_torch.py                                     half a minute on two cores
    python cnn_torch.py --device cuda --dtype bfloat16 --width 64 --side 64 --batch 256 --workers 8

Pictures are drawn as they are needed, each from its own number, by the worker processes of a DataLoader: what
they cost stands beside the model in a profile. On a CPU the same seed gives the same numbers, to the last
bit.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SHOWN_EVERY = 10  # steps
SHAPES = ("disc", "square", "cross", "ring")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Shapes of any colour, size and place, under noise; picture 17 is always the same one."""

    def __init__(self, count: int, side: int, seed: int) -> None:
        self.count, self.side, self.seed = count, side, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number >= self.count:
            raise IndexError(number)
        random = np.random.default_rng((self.seed, number))
        shape = int(random.integers(len(SHAPES)))
        colour = random.uniform(0.5, 1.5, (3, 1, 1))
        picture = colour * self._drawn(shape, random) + random.normal(0, 0.4, (3, self.side, self.side))
        return torch.from_numpy(picture.astype(np.float32)), shape

    def _drawn(self, shape: int, random: np.random.Generator) -> np.ndarray:
        """Where the shape is: 1 inside, 0 outside."""
        y, x = np.mgrid[: self.side, : self.side] - random.uniform(0.35, 0.65, (2, 1, 1)) * self.side
        size = random.uniform(0.2, 0.35) * self.side
        far, near = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
        round_ = np.hypot(x, y)
        inside = [
            round_ < size,
            far < size,
            (far < size) & (near < size / 3),
            (round_ < size) & (round_ > size / 2),
        ]
        return inside[shape].astype(np.float32)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        same = channels == wider and stride == 1
        self.downsample = nn.Identity() if same else nn.Conv2d(channels, wider, 1, stride, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.bn1(self.conv1(inputs)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.downsample(inputs))


class ResNet(nn.Module):
    """A stem, three stages that grow wider and smaller, and a classifier."""

    def __init__(self, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = [width, width, 2 * width, 4 * width]
        self.layer1, self.layer2, self.layer3 = (
            self._stage(widths[i], widths[i + 1], blocks, stride=min(i + 1, 2)) for i in range(3)
        )
        self.fc = nn.Linear(4 * width, classes)

    @staticmethod
    def _stage(channels: int, wider: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [Block(wider, wider, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Block(channels, wider, stride), *rest)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        maps = self.layer3(self.layer2(self.layer1(self.stem(pictures))))
        return self.fc(maps.mean((2, 3)))


def loader(count: int, seed: int, args: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, int]]:
    """Pictures in batches, drawn by workers beside the training."""
    return DataLoader(
        Pictures(count, args.side, seed),
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.device == "cuda",
        generator=torch.Generator().manual_seed(seed),
    )


def mixed(args: argparse.Namespace) -> torch.autocast:
    """Convolutions in the type that was asked for; the weights stay as they are."""
    return torch.autocast(args.device, DTYPES[args.dtype], enabled=args.dtype != "float32")


def train(model: nn.Module, args: argparse.Namespace) -> None:
    """One picture after the other until the steps are done, with a rate that falls."""
    learning = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(learning, args.steps)
    called = torch.compile(model) if args.compile else model
    losses = []
    for step, batch in enumerate(loader(args.batch * args.steps, args.seed, args), 1):
        pictures, shapes = (part.to(args.device, non_blocking=True) for part in batch)
        with mixed(args):
            loss = functional.cross_entropy(called(pictures), shapes)
        learning.zero_grad()
        loss.backward()
        learning.step()
        rate.step()
        losses.append(loss.detach())
        if step % SHOWN_EVERY == 0:
            print(f"step {step:5}  loss {torch.stack(losses).mean().item():.4f}", flush=True)
            losses.clear()


@torch.inference_mode()
def test(model: nn.Module, args: argparse.Namespace) -> None:
    """Looks at pictures that it has not seen."""
    model.eval()
    right = []
    for pictures, shapes in loader(8 * args.batch, args.seed + 1, args):
        with mixed(args):
            scores = model(pictures.to(args.device, non_blocking=True))
        right.append(scores.argmax(-1) == shapes.to(args.device))
    print(f"new pictures: accuracy {torch.cat(right).float().mean().item():.4f}")


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, default=2, help="of each stage")
    parser.add_argument("--side", type=int, default=32, help="pixels")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int, default=2, help="processes that draw pictures")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of convolutions")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def main() -> None:
    """Builds the model, trains it and tries it."""
    args = options()
    torch.manual_seed(args.seed)
    model = ResNet(args.width, args.blocks, len(SHAPES)).to(args.device)
    train(model, args)
    test(model, args)


if __name__ == "__main__":
    main()
