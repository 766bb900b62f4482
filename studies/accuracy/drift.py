"""What calls of one shape read, and what learning changes of it: ``python -m studies.accuracy.drift``.

BERT-base learns one batch by heart. A product that is there four times in each layer is replayed with what it
reads in three of these places, early and late, and with pieces of all of them, as calibration keeps them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.frameworks.torch.call import Call
from joulemap.frameworks.torch.replayer import Replayer
from joulemap.units import fmt
from studies.accuracy import alone
from studies.page import markdown

PROGRAM = {"batch": 32, "length": 128, "dropout": 0.0, "tiny": False, "compile": False}
STEPS = {"early": 8, "late": 1000}
LAYERS = (2, 8)
PLACES = {"query": "self.query", "value": "self.value", "output": "output.dense"}
FOUR = ("query", "value", "value", "output")
"""The places of a layer: a key reads what a value does."""
PIECE = 32 * 1024
PASSES = 2
Held = tuple[bytes, ...]
"""What bias, input and weight hold."""


def operands(args: argparse.Namespace) -> Iterator[tuple[str, Held]]:
    """Of every place in some layers, after so many steps; names tell which."""
    from studies.accuracy.programs import bert, training

    model, batch = bert(args)
    step, taken = training(model, lambda: model(**batch).loss, args), 0
    for when, steps in STEPS.items():
        for _ in range(steps - taken - 1):
            step()
        own = seen(model, step)
        taken = steps
        yield from ((f"{when}, {place} of layer {layer}", one) for (place, layer), one in own.items())
        yield f"{when}, pieces", pieces([own[place, LAYERS[0]] for place in FOUR])


def seen(model: Any, step: Callable[[], object]) -> dict[tuple[str, int], Held]:
    """What every place reads in one step."""
    found: dict[tuple[str, int], Held] = {}

    def look(where: tuple[str, int], module: Any, given: Any, _: Any) -> None:
        bias, x, weight = map(held, (module.bias, given[0], module.weight))
        found[where] = bias, x, weight

    places = {(place, layer): path for layer in LAYERS for place, path in PLACES.items()}
    hooks = [
        model.get_submodule(f"bert.encoder.layer.{where[1]}.attention.{path}").register_forward_hook(
            partial(look, where)
        )
        for where, path in places.items()
    ]
    step()
    for hook in hooks:
        hook.remove()
    return found


def held(tensor: Any) -> bytes:
    """What a product reads of it under autocast."""
    import torch

    return bytes(tensor.detach().to(torch.bfloat16).view(torch.uint8).cpu().numpy().tobytes())


def pieces(some: list[Held]) -> Held:
    """One of each call, another one each time, which come over and over."""
    bias, *_ = some[0]
    return bias, *(
        b"".join(one[place][7 * number * PIECE :][:PIECE] for number, one in enumerate(some))
        for place in (1, 2)
    )


def product(args: argparse.Namespace) -> Operation:
    """As the program calls it; all that it reads was just written, and is in the cache."""
    rows, width = args.batch * args.length, 64 if args.tiny else 768
    shapes = [[width], [rows, width], [width, width], [], []]
    strides = [[1], [width, 1], [1, width], [], []]
    types, scalars = [*["c10::BFloat16"] * 3, "Scalar", "Scalar"], [None, None, None, 1, 1]
    sizes, steps, words, numbers = (json.dumps(one) for one in (shapes, strides, types, scalars))
    return Operation("aten::addmm", sizes, steps, words, numbers, "000")


def replay(device: str) -> Iterator[dict[str, Any]]:
    """Every one of them, all others in between."""
    import torch

    args = argparse.Namespace(**PROGRAM, device=device)
    call = Call.of(product(args).key)
    every = {"normal": (), **dict(operands(args))}
    for _ in range(PASSES):
        for name, values in every.items():
            yield alone.replayed(name, Replayer(call, torch.device(device), values), device)


def rows(found: dict[str, Cost]) -> list[list[str]]:
    """What an execution takes, for how long and at which clocks."""
    return [
        [name, fmt(one.energy_j, "J"), fmt(one.seconds, "s"), f"{one.power_w:.0f} W", f"{one.clock_mhz:.0f}"]
        for name, one in found.items()
    ]


def main() -> None:
    """Measure, and print a table."""
    found = alone.studied("studies.accuracy.drift", main.__doc__, replay)
    if found is not None:
        sys.stdout.write(markdown(("values", "energy", "time", "power", "MHz"), rows(found)))


if __name__ == "__main__":
    main()
