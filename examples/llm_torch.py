"""A language model that reads a prompt (prefill) and goes on with it, token by token (decode).

    python llm_torch.py                                                   a tiny one, on a CPU
    python llm_torch.py --size 1b --device cuda --dtype bfloat16          1.2 billion parameters

The model is a `LlamaForCausalLM` made from a config, with random weights: nothing is downloaded, and what it
says makes no sense; what it costs does. Prompts and answers follow from the seed.

Energy per token is read from a recording afterwards. Both phases are named with `joulemap.measure`, which
they tell of every token that went through the model, so that

    joulemap run -o llm.joulemap llm_torch.py
    joulemap show llm.joulemap --by region

has the energy of `prefill` and of `decode`, and of each token in them.

Every prompt and every new token is a step of its own (`joulemap.step`): `--by step` has them one by one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import joulemap

SIZES = {
    "tiny": LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    ),
    "1b": LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    ),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Phase:
    """Tokens that went through the model in a phase, and how long that took."""

    name: str
    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, since_s: float) -> None:
        """Some more tokens, and the time since then."""
        self.tokens += tokens
        self.seconds += time.perf_counter() - since_s

    def __str__(self) -> str:
        return f"{self.name:7} {self.tokens:6} tokens  {self.tokens / self.seconds:.1f} tokens/s"


def make_llm(args: argparse.Namespace) -> LlamaForCausalLM:
    """The model, made where it runs and in the type it runs in."""
    torch.set_default_dtype(DTYPES[args.dtype])
    with torch.device(args.device):
        return LlamaForCausalLM(SIZES[args.size]).eval()


def wait_for(device: str) -> None:
    """Until the GPU has done what it was given; a CPU has."""
    if device == "cuda":
        torch.cuda.synchronize()


def prefill(model: LlamaForCausalLM, prompt: torch.Tensor, cache: DynamicCache, phase: Phase) -> torch.Tensor:
    """Reads the prompt at once and gives the first new token."""
    start_s = time.perf_counter()
    with joulemap.measure("prefill", unit="token") as tokens, joulemap.step("prefill"):
        scores = model(prompt, past_key_values=cache, logits_to_keep=1).logits
        token = scores[:, -1].argmax(-1, keepdim=True)
        wait_for(prompt.device.type)
        tokens.add(prompt.numel())
    phase.add(prompt.numel(), start_s)
    return token


def decode(
    model: LlamaForCausalLM, token: torch.Tensor, cache: DynamicCache, count: int, phase: Phase
) -> torch.Tensor:
    """Goes on for so many tokens, each from all before it."""
    start_s = time.perf_counter()
    answer = [token]
    with joulemap.measure("decode", unit="token") as tokens:
        for _ in range(count):
            with joulemap.step("decode"):
                scores = model(answer[-1], past_key_values=cache).logits
                answer.append(scores[:, -1].argmax(-1, keepdim=True))
            tokens.add(len(token))
        wait_for(token.device.type)
    phase.add(count * len(token), start_s)
    return torch.cat(answer, dim=1)


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=4, help="prompts at once")
    parser.add_argument("--rounds", type=int, default=4, help="how often")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def digest(answer: torch.Tensor) -> str:
    """A short name for what was said: the same answer, the same name."""
    return hashlib.sha256(answer.cpu().numpy().tobytes()).hexdigest()[:16]


@torch.inference_mode()
def main() -> None:
    """Answers some rounds of prompts, and says how quick each phase was."""
    args = options()
    torch.manual_seed(args.seed)
    model = make_llm(args)
    reading, saying = Phase("prefill"), Phase("decode")
    for number in range(args.rounds):
        prompt = torch.randint(model.config.vocab_size, (args.batch, args.prompt), device=args.device)
        cache = DynamicCache()
        first = prefill(model, prompt, cache, reading)
        answer = decode(model, first, cache, args.tokens - 1, saying)
        start = " ".join(map(str, answer[0, :6].tolist()))
        print(f"round {number + 1:3}  {start} …  {digest(answer)}", flush=True)
    print(reading)
    print(saying)


if __name__ == "__main__":
    main()
