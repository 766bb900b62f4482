"""Programs to be validated: ``joulemap validate --stop studies/accuracy/programs.py bert-train --batch 256``.

Random weights and inputs of fixed shapes, made once on the device: what is measured is the model. They run
until they are interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Step = Callable[[], Any]


def bert(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """BERT-base as it is pre-trained, and a batch for it."""
    from transformers import BertConfig, BertForPreTraining

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    dropout = {"hidden_dropout_prob": args.dropout, "attention_probs_dropout_prob": args.dropout}
    config = BertConfig(**(small if args.tiny else {}), **dropout)
    tokens = torch.randint(0, config.vocab_size, (args.batch, args.length), device=args.device)
    batch = {"input_ids": tokens, "labels": tokens, "next_sentence_label": tokens[:, 0] % 2}
    with torch.device(args.device):
        return as_asked(BertForPreTraining(config), args), batch


def as_asked(model: nn.Module, args: argparse.Namespace) -> Any:
    """Compiled or not."""
    return torch.compile(model) if args.compile else model


def bert_train(args: argparse.Namespace) -> Step:
    """Forward, backward and AdamW, in mixed precision."""
    model, batch = bert(args)
    return training(model, lambda: model(**batch).loss, args)


def bert_infer(args: argparse.Namespace) -> Step:
    """Forward only."""
    model, batch = bert(args)
    model = model.to(torch.bfloat16).eval()
    return lambda: model(input_ids=batch["input_ids"])


def llama(args: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    """A Llama of 1.2 billion parameters, and prompts for it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000 if args.tiny else 128256,
        hidden_size=64 if args.tiny else 2048,
        intermediate_size=128 if args.tiny else 8192,
        num_hidden_layers=2 if args.tiny else 16,
        num_attention_heads=4 if args.tiny else 32,
        num_key_value_heads=2 if args.tiny else 8,
        max_position_embeddings=8192,
    )
    with torch.device(args.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    return model, torch.randint(0, config.vocab_size, (args.batch, args.length), device=args.device)


def llama_prefill(args: argparse.Namespace) -> Step:
    """Prompts, read at once."""
    model, tokens = llama(args)
    return lambda: model(input_ids=tokens, use_cache=False, logits_to_keep=1)


def llama_decode(args: argparse.Namespace) -> Step:
    """The next token after the prompts, over and over: the cache is cut back, so that every step is alike."""
    from transformers import DynamicCache

    model, tokens = llama(args)
    with torch.inference_mode():
        cache = model(input_ids=tokens, past_key_values=DynamicCache(), logits_to_keep=1).past_key_values

    def step() -> None:
        model(input_ids=tokens[:, :1], past_key_values=cache)
        cache.crop(-1)

    return step


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1 x 1, 3 x 3, 1 x 1, and around it."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            *convolution(into, width, 1),
            nn.ReLU(),
            *convolution(width, width, 3, stride),
            nn.ReLU(),
            *convolution(width, 4 * width, 1),
        )
        same = stride == 1 and into == 4 * width
        self.around = nn.Identity() if same else nn.Sequential(*convolution(into, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inside(x) + self.around(x))


def convolution(into: int, out: int, size: int, stride: int = 1) -> list[nn.Module]:
    """With its normalisation."""
    return [nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)]


def resnet_train(args: argparse.Namespace) -> Step:
    """ResNet-50 on pictures of ImageNet's size."""
    into, blocks = 64, []
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(1 if args.tiny else count):
            blocks.append(Bottleneck(into, width, stride if number == 0 else 1))
            into = 4 * width
    stem = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000)]
    model = nn.Sequential(*stem, *blocks, *head).to(args.device, memory_format=torch.channels_last)
    pictures = torch.rand(args.batch, 3, 64 if args.tiny else 224, 64 if args.tiny else 224)
    pictures = pictures.to(args.device, memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch,), device=args.device)
    net = as_asked(model, args)
    return training(net, lambda: nn.functional.cross_entropy(net(pictures), labels), args)


def training(model: nn.Module, loss: Step, args: argparse.Namespace) -> Step:
    """A step of training with bfloat16 where that is precise enough."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(args.device, torch.bfloat16):
            value = loss()
        value.backward()
        optimizer.step()

    return step


PROGRAMS = {
    "bert-train": bert_train,
    "bert-infer": bert_infer,
    "llama-prefill": llama_prefill,
    "llama-decode": llama_decode,
    "resnet-train": resnet_train,
}


def asked_for(arguments: Sequence[str] | None = None) -> Step:
    """One step of a program, by what was said on the command line."""
    parser = argparse.ArgumentParser(description="Run a program until it is interrupted.")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--compile", action="store_true", help="BERT and ResNet-50")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try it out")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    step = PROGRAMS[args.program](args)
    return step if args.program.endswith("train") else torch.no_grad()(step)


def main() -> None:
    """Run one of them."""
    step = asked_for()
    while True:
        step()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted")
