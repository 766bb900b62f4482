"""Weights in the lower precision of ``torch.autocast``, which keeps what it has cast until it is left.

So a module that is called again finds its weights cast, and does less than the program's own call did. Unless
that found them, too: a module that is called several times inside of one autocast casts the first time alone.
Which it was is told by a weight of ours that is cast whenever the module is called: its node in autograd's
graph is another one each time that it is, and the same where it was kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from joulemap.frameworks.torch.flags import autocast


class Casts:
    """What modules find cast when they are called again, by the numbers that somebody gives them."""

    def __init__(self) -> None:
        self._ours: dict[int, tuple[Any, Any]] = {}
        self._reusing: set[int] = set()

    def watched(self, number: int, cast: Sequence[int]) -> None:
        """Which weights one call of a module has cast while nothing was kept, by identity. One that uses each
        of them several times would do more than the program then: nearer to it is to cast none."""
        if len(cast) >= 2 * len(set(cast)) > 0:
            self._reusing.add(number)

    @contextmanager
    def as_in_the_call_before(self, number: int, module: Any) -> Iterator[None]:
        """In here a module finds of its weights what the program's own call found, which has just ended."""
        casts = number not in self._reusing and self._is_first(number, module)
        with uncached() if casts else nullcontext():
            yield

    def _is_first(self, number: int, module: Any) -> bool:
        """Whether that was the module's first call since autocast began."""
        import torch

        device = next((one.device for one in module.parameters() if one.device.type in autocast()), None)
        if device is None or torch.is_inference_mode_enabled():  # in which nothing is kept
            return False
        weight, before = self._ours.get(number, (None, None))
        if weight is None or weight.device != device:
            weight = torch.nn.Parameter(torch.zeros(1, 1, device=device))
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
            made = torch.mm(weight, weight).grad_fn  # of which the program's own hooks hear nothing
        node = made.next_functions[0][0]
        self._ours[number] = weight, node
        return node is not before


@contextmanager
def uncached() -> Iterator[None]:
    """Weights are cast whenever they are used, and what is kept of them stays as it is."""
    import torch

    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _as_it_is(tensor: Any) -> Any:
    return tensor
