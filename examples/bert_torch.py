"""BERT in PyTorch, from Hugging Face's classes and nothing else: the three stages on a made-up corpus.

    python bert_torch.py                                       pre-trains for less than a minute on two cores
    python bert_torch.py --save bert.pt                        … and keeps what it learnt
    python bert_torch.py --stage finetune --load bert.pt
    python bert_torch.py --stage predict --load bert.pt
    python bert_torch.py --layers 12 --hidden 768 --heads 12 --device cuda --dtype bfloat16

Pre-training hides 15 % of the word pieces and asks for them (`cls/predictions`), and asks whether the second
text goes on where the first one stopped (`cls/seq_relationship`). Fine-tuning puts a classifier on the pooled
first token: is the story gloomy or cheerful? Prediction reads stories with holes and fills them.

The model is `BertForPreTraining` made from a config, with random weights: nothing is downloaded. On a CPU the
same seed gives the same numbers, to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import MOODS, PAD, Arrays, Corpus
from torch import nn
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification

SHOWN_EVERY = 10  # steps
IGNORED = -100  # what a loss passes over
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Tensors = dict[str, torch.Tensor]


def make_bert(vocabulary: int, args: argparse.Namespace) -> BertForPreTraining:
    """BERT of the size asked for, with the weights of a beginner."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.seq,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
        num_labels=len(MOODS),
        pad_token_id=PAD,
    )
    return BertForPreTraining(config)


def texts(inputs: Arrays) -> Arrays:
    """The texts of some examples, under the names that Hugging Face has for them."""
    tokens = inputs["tokens"]
    return {
        "input_ids": tokens,
        "token_type_ids": inputs["segments"],
        "attention_mask": (tokens != PAD).astype(np.int32),
    }


def with_holes(corpus: Corpus, count: int) -> Arrays:
    """Pairs of texts with holes, what was there before, and whether they belong together."""
    inputs, targets, counts = corpus.pretraining(count)
    labels = np.full_like(inputs["tokens"], IGNORED)
    rows, holes = np.nonzero(counts["predictions"])
    labels[rows, inputs["positions"][rows, holes]] = targets["predictions"][rows, holes]
    return {**texts(inputs), "labels": labels, "next_sentence_label": targets["seq_relationship"]}


def with_moods(corpus: Corpus, count: int) -> Arrays:
    """Stories, and how they feel."""
    inputs, moods = corpus.classification(count)
    return {**texts(inputs), "labels": moods}


def on_device(batch: Arrays, device: str) -> Tensors:
    """The arrays as tensors where the model is."""
    return {name: torch.from_numpy(values).long().to(device) for name, values in batch.items()}


def batches(examples: Arrays, args: argparse.Namespace) -> Iterator[Tensors]:
    """The examples in some order, a batch at a time."""
    order = np.random.default_rng(args.seed).permutation(len(examples["labels"]))
    for start in range(0, len(order), args.batch):
        chosen = order[start : start + args.batch]
        yield on_device({name: values[chosen] for name, values in examples.items()}, args.device)


def mixed(args: argparse.Namespace) -> torch.autocast:
    """Matrix products in the type that was asked for; the weights stay as they are."""
    return torch.autocast(args.device, DTYPES[args.dtype], enabled=args.dtype != "float32")


def optimizer(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW, with decay for matrices only, as BERT is trained."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, rate)


def train(model: nn.Module, examples: Arrays, rate: float, args: argparse.Namespace) -> None:
    """Learns from the examples, batch by batch, and says how it goes."""
    learning = optimizer(model, rate)
    called = torch.compile(model) if args.compile else model
    model.train()
    losses = []
    for step, batch in enumerate(batches(examples, args), 1):
        with mixed(args):
            loss = called(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        learning.step()
        learning.zero_grad()
        losses.append(loss.detach())
        if step % SHOWN_EVERY == 0:
            print(f"step {step:5}  loss {torch.stack(losses).mean().item():.4f}", flush=True)
            losses.clear()


def pretrain(model: BertForPreTraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills holes and joins sentences until the steps are done."""
    train(model, with_holes(corpus, args.batch * args.steps), 5e-4, args)
    if args.save:
        torch.save(model.state_dict(), args.save)
        print(f"saved {args.save}")


def finetune(pretrained: BertForPreTraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Learns how a story feels, and says how often that is right on new stories."""
    model = BertForSequenceClassification(pretrained.config).to(args.device)
    model.bert = pretrained.bert
    train(model, with_moods(corpus, args.batch * args.steps), 2e-4, args)
    model.eval()
    with torch.inference_mode(), mixed(args):
        said = [(model(**batch), batch) for batch in batches(with_moods(corpus, 8 * args.batch), args)]
    loss = torch.stack([answer.loss for answer, _ in said]).mean().item()
    right = torch.cat([answer.logits.argmax(-1) == batch["labels"] for answer, batch in said])
    print(f"new stories: loss {loss:.4f}  accuracy {right.float().mean().item():.4f}")


def predict(model: BertForPreTraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills the holes of new stories, batch by batch, and shows a story now and then."""
    called = torch.compile(model) if args.compile else model
    model.eval()
    for step in range(args.steps):
        examples = with_holes(corpus, args.batch)
        hidden, _ = examples.pop("labels"), examples.pop("next_sentence_label")
        with torch.inference_mode(), mixed(args):
            scores = called(**on_device(examples, args.device)).prediction_logits
        if step % SHOWN_EVERY == 0:
            show_holes(corpus, examples["input_ids"], hidden, scores.argmax(-1).cpu().numpy(), step)


def show_holes(corpus: Corpus, tokens: np.ndarray, hidden: np.ndarray, found: np.ndarray, step: int) -> None:
    """How many holes were filled as they should be, and a story with what was found for its holes."""
    holes = hidden != IGNORED
    print(f"step {step + 1:5}  right {(hidden == found)[holes].mean():.4f}")
    print(f"  {corpus.vocabulary.decode(tokens[0])}")
    print(f"  holes: {corpus.vocabulary.decode(found[0][holes[0]])}", flush=True)


STAGES = {"pretrain": pretrain, "finetune": finetune, "predict": predict}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=STAGES, default="pretrain")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64, help="word pieces in an example")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of matrix products")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--save", type=Path, metavar="FILE.pt", help="keep the pre-trained weights")
    parser.add_argument("--load", type=Path, metavar="FILE.pt", help="start from kept weights")
    return parser.parse_args()


def main() -> None:
    """Builds the model and runs one stage."""
    args = options()
    torch.manual_seed(args.seed)
    corpus = Corpus(args.seq, args.seed)
    model = make_bert(len(corpus.vocabulary), args).to(args.device)
    if args.load:
        model.load_state_dict(torch.load(args.load, map_location=args.device, weights_only=True))
    STAGES[args.stage](model, corpus, args)


if __name__ == "__main__":
    main()
