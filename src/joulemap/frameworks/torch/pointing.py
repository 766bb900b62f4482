"""How far indices may go. Which operands are indices, and what they point into, is told by what the schema of
an operation calls its arguments. One too far breaks a GPU's context or a CPU's memory, so none is guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from joulemap.frameworks.torch.call import Call, NotRebuilt
from joulemap.frameworks.torch.fitting import FITTED

UNKNOWN = "it is not known what its indices point into"
_POINTS = re.compile(
    r"index|indices|idx|target|label|mapping|sorter|pivots|repeats|lengths|seqlen|seqused|cum_seq|batch_sizes"
    r"|bag|block_table|meta|nested|^shape$|sections|(?<!philox_)offs"
)
"""Arguments of whole numbers that say where something is, or how much of it there is."""
_COUNTS = {"one_hot": "num_classes", "_convert_indices_from_coo_to_csr": ""}
"""Here ``self`` is one, too; and the argument that it stays below."""
_WHOLE = ("long int", "int")
_OF_CLASSES = ("nll_loss", "cross_entropy")
_OF_VALUES = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "margin_ranking_loss"),
    *("kl_div", "binary_cross_entropy", "poisson_nll_loss", "hinge_embedding_loss", "cosine_embedding_loss"),
)
"""Losses whose targets are numbers like others."""
_PIVOTS = {"pivots": "LU", "LU_pivots": "LU_data"}


def bounds(call: Call, place: int, kind: str) -> tuple[int, int] | None:
    """From where to where, half-open, the whole numbers of an argument go, or None where any will do."""
    if "::" in call.name and kind in _WHOLE:  # another library calls its arguments as it likes
        raise NotRebuilt(UNKNOWN)
    argument = call.names[place] if place < len(call.names) else ""  # what is written into points nowhere
    if argument == "self" and call.name == "bincount":
        return (0, most) if (most := call.number("minlength")) else None
    if not _points(call.name, argument):
        return None
    if argument in _PIVOTS and call.has(_PIVOTS[argument]):
        return 1, 1 + call.shape(_PIVOTS[argument])[-2]
    size = _size(call, argument)
    if size is not None:
        return 0, max(size, 1)
    if call.name not in FITTED:
        raise NotRebuilt(f"{UNKNOWN}: {argument}")
    return 0, 1


def _points(name: str, argument: str) -> bool:
    if argument == "self":
        return name in _COUNTS
    return bool(_POINTS.search(argument)) and not (argument == "target" and name.startswith(_OF_VALUES))


def _size(call: Call, argument: str) -> int | None:
    """How many there are of what an argument points into; None where it is not known."""
    name = call.name.rstrip("_")
    if argument == "self":
        most = call.number(_COUNTS[name])
        return most if most is not None and most > 0 else None
    if argument in ("index", "indices", "maximum_indices"):
        return _along(call) if call.has("dim") else _rows(call, name)
    if argument == "target" and name.startswith(_OF_CLASSES):
        return _at(call.shape("self"), min(1, len(call.shape("self")) - 1))
    if argument == "target" and name.startswith("multi_margin_loss"):
        return _at(call.shape("self"), -1)
    return _at(call.shape("sorted_sequence"), -1) if argument == "sorter" else None


def _along(call: Call) -> int | None:
    """The dimension along which indices go, of the table or of what is said of its sizes."""
    dimension = call.number("dim")
    if dimension is None:
        return prod(call.shape("self")) if call.name == "take_along_dim" else None
    for name in ("sizes", "self_sizes"):
        if call.has(name):
            return _at(call.numbers(name), dimension)
    return _at(call.shape("input" if call.has("input") else "self"), dimension)


def _rows(call: Call, name: str) -> int | None:
    """The rows of a table, or all of its numbers."""
    if call.has("num_weights"):
        return call.number("num_weights")
    if call.has("weight"):
        return call.shape("weight")[0]
    if name == "embedding_renorm":
        return call.shape("self")[0]
    return prod(call.shape("self")) if name in ("take", "put") else None


def _at(sizes: Sequence[int], dimension: int) -> int:
    """A size; what has no dimensions is one number."""
    return sizes[dimension] if sizes else 1
