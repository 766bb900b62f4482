"""How much a call of a module is given: a prompt of a thousand tokens is another step than a single one."""

from __future__ import annotations

from functools import cache
from typing import Any

from joulemap.frameworks.torch.aside import unseen
from joulemap.frameworks.watch import from_a_signal

Between = tuple[float, float]
ANY: Between = (0.0, float("inf"))
ABSENT, FEWEST = 0, 1
"""Where no tensor is given, and where one is that is empty or must not be asked."""


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many numbers are in the first tensor that a module is called with. Tensors inside of lists and
    dicts do not count, nor do classes of the program's own."""
    tensor, *_ = _known()
    for one in (*args, *kwargs.values()):
        if type(one) is tensor:
            return count(one)
    return ABSENT


def count(one: Any) -> int:
    """How many numbers are in it, if it is a tensor. While a call is traced into a graph, to ask would be a
    part of that; modes of the program's own hear nothing of it."""
    tensor, traces, unheard = _known()
    if type(one) is not tensor:
        return ABSENT
    if traces() is not None:
        return FEWEST
    try:
        with unheard():
            found = one.numel()
    except Exception as error:
        if from_a_signal(error):
            raise
        return FEWEST
    return max(found, FEWEST) if type(found) is int else FEWEST  # a symbol, to compare which would bind it


@cache
def _known() -> tuple[Any, Any, Any]:
    from torch import Tensor
    from torch._C import DisableTorchFunction, _get_tracing_state

    return Tensor, _get_tracing_state, DisableTorchFunction


def counting() -> dict[str, Any]:
    """What the function that calls modules needs to count by itself: the class of tensors, what tells how
    many numbers one has, whether it can be asked just so, and what does it otherwise."""
    from torch import Tensor
    from torch._C import _get_tracing_state, _len_torch_function_stack

    return {
        "kind": type,
        "whole": int,
        "tensor": Tensor,
        "numbers": Tensor.numel,
        "modes": _len_torch_function_stack,
        "traces": _get_tracing_state,
        "count": unseen(count),
    }
