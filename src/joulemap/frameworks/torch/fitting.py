"""Operands that go by each other: what the forward pass of an operation has left to its backward pass, where
one row ends and the next begins, or how many there are of what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from joulemap.frameworks.torch.call import Call

CHOSEN = "_log_softmax_backward_data"
LENGTHS = ("input_lengths", "target_lengths")
"""Lists that are made up where torch has not recorded them."""

Given = dict[str, Any]
"""Arguments by name. They are changed in place; lists and numbers are put instead of others."""


def fitted(call: Call, arguments: Sequence[Any]) -> list[Any]:
    """The same arguments, made to fit each other."""
    given = dict(zip(call.names, arguments, strict=False))
    if call.name in FITTED:
        FITTED[call.name](given)
    return [*given.values(), *arguments[len(given) :]]


def choose_one(gradient: Any, dimension: int) -> None:
    """Of a loss that asks for one of many: all others have no gradient, which draws less. One that was
    expanded has the same for all."""
    if gradient.dim() and 0 not in gradient.stride():
        gradient.zero_().narrow(dimension, 0, 1).fill_(-1.0)


def _choice(given: Given) -> None:
    choose_one(given["grad_output"], given["dim"])


def _let_through(given: Given) -> None:
    """As many as the program's dropout did, which makes up for the others."""
    scale = given["scale"]
    given["mask"].bernoulli_(1 / scale if scale and scale > 1 else 1.0)


def _true(given: Given) -> None:
    """A GPU whose assertions fail cannot be used any more."""
    given["self"].fill_(1)


def _scattered(given: Given) -> None:
    """A mask asks for no more than there is; half of the places at most."""
    import torch

    into, mask = given["self"], given["mask"]
    own = mask[
        tuple(slice(None if step else 1) for step in mask.stride())
    ]  # the same along what was expanded
    many = min(own.numel() // 2, given["source"].numel() * own.numel() // max(into.numel(), 1))
    own.copy_(torch.randperm(own.numel(), device=own.device).view(own.shape) < many)


def _pooled(op: str, given: Given) -> None:
    """Where the largest values were, one in each window: any others would be written to elsewhere."""
    import torch

    _, *windows, indices = given.values()
    indices.copy_(getattr(torch.ops.aten, op)(*windows)[1])


def _adaptive(many: int, given: Given) -> None:
    given["indices"].copy_(_spread(given["self"], given["grad_output"].shape[-many:]))


def _unpooled(many: int, given: Given) -> None:
    """As if what they are put into had been pooled, one from each part of it."""
    import torch

    pooled, indices = given["self"], given["indices"]
    whole = torch.randn((*pooled.shape[:-many], *given["output_size"]), device=indices.device)
    indices.copy_(_spread(whole, pooled.shape[-many:]))


def _spread(whole: Any, sizes: Sequence[int]) -> Any:
    import torch

    return getattr(torch.ops.aten, f"adaptive_max_pool{len(sizes)}d")(whole, list(sizes))[1]


def _fractional(many: int, given: Given) -> None:
    import torch

    pooled, pool = given["self"], getattr(torch.ops.aten, f"fractional_max_pool{many}d")
    batch = pooled.shape[0] if pooled.dim() == many + 2 else 1
    samples = pooled.new_empty(batch, pooled.shape[-many - 1], many).uniform_()
    given["indices"].copy_(pool(pooled, given["kernel_size"], given["output_size"], samples)[1])


def _bags(given: Given) -> None:
    """Where each bag of indices begins: the first with the first of them, and all with as many."""
    offsets = given["offsets"]
    many = max(offsets.numel() - bool(given.get("include_last_offset")), 1)
    offsets.copy_(_begins(offsets.numel(), given["indices"], many))


def _bags_backward(given: Given) -> None:
    """The same, and which bag every index is in."""
    import torch

    indices = given["indices"]
    many = given["grad"].shape[0]
    begins = _begins(many + 1, indices, max(many, 1))
    of_each = torch.arange(indices.numel(), device=indices.device)
    known = {
        "offsets": begins[:-1],
        "offset2bag": torch.searchsorted(begins, of_each, right=True) - 1,
        "bag_size": begins.diff(),
    }
    for name, found in known.items():
        if name in given and given[name].shape == found.shape:  # not all of them are there in each mode
            given[name].copy_(found)


def _begins(count: int, indices: Any, bags: int) -> Any:
    import torch

    return torch.arange(count, device=indices.device) * indices.numel() // bags


def _labels(given: Given) -> None:
    """Half of the classes are a row's, each once, and the first -1 ends them."""
    import torch

    target = given["target"]
    order = torch.rand(target.shape, device=target.device).argsort(-1)
    many = max(target.shape[-1] // 2, 1)
    target.copy_(order)
    target[..., many:] = -1
    if "is_target" in given:
        given["is_target"].zero_().scatter_(-1, order[..., :many], 1.0)


def _spoken(given: Given) -> None:
    """Of CTC: logarithms of chances, and labels without the blank one. Lengths that are not known are all
    that there is room for."""
    scores, targets, blank = given["log_probs"], given["targets"], given.get("blank") or 0
    scores.copy_(scores.log_softmax(-1))
    targets.random_(0, scores.shape[-1] - 1)
    targets += targets >= blank
    batch = scores.shape[1] if scores.dim() == 3 else 1
    for name, lengths in zip(LENGTHS, ([scores.shape[0]] * batch, _spelled(given, batch)), strict=True):
        if given[name] is None:
            given[name] = lengths
        elif not isinstance(given[name], list):
            given[name].copy_(given[name].new_tensor(lengths).view(given[name].shape))


def _spelled(given: Given, batch: int) -> list[int]:
    """How long each label is: a row, or as much of all in one row, of which none may be left."""
    targets, states = given["targets"], given.get("log_alpha")
    if targets.dim() > 1:
        return [targets.shape[-1] if states is None else (states.shape[-1] - 1) // 2] * batch
    return [targets.numel() * (one + 1) // batch - targets.numel() * one // batch for one in range(batch)]


def _spoken_to_cudnn(given: Given) -> None:
    """Which has labels in the memory of the CPU where lengths are there, too."""
    _spoken(given)
    if isinstance(given["input_lengths"], list):
        given["targets"] = given["targets"].cpu()


def _spoken_backward(given: Given) -> None:
    """And what the forward pass has found."""
    import torch

    _spoken(given)
    names = ("log_probs", "targets", *LENGTHS, "blank")
    losses, states = torch.ops.aten._ctc_loss(*map(given.get, names))
    given["neg_log_likelihood"].copy_(losses)
    given["log_alpha"].narrow(-1, 0, states.shape[-1]).copy_(states)


FITTED: Mapping[str, Callable[[Given], None]] = {
    CHOSEN: _choice,
    "native_dropout_backward": _let_through,
    "_assert_async": _true,
    "masked_scatter": _scattered,
    "masked_scatter_": _scattered,
    "max_pool2d_with_indices_backward": partial(_pooled, "max_pool2d_with_indices"),
    "max_pool3d_with_indices_backward": partial(_pooled, "max_pool3d_with_indices"),
    "adaptive_max_pool2d_backward": partial(_adaptive, 2),
    "adaptive_max_pool3d_backward": partial(_adaptive, 3),
    "fractional_max_pool2d_backward": partial(_fractional, 2),
    "fractional_max_pool3d_backward": partial(_fractional, 3),
    "max_unpool2d": partial(_unpooled, 2),
    "max_unpool3d": partial(_unpooled, 3),
    **dict.fromkeys(("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _bags),
    "_embedding_bag_backward": _bags_backward,
    "_embedding_bag_dense_backward": _bags_backward,
    "_embedding_bag_sparse_backward": _bags_backward,
    "_embedding_bag_per_sample_weights_backward": _bags_backward,
    "multilabel_margin_loss": _labels,
    "multilabel_margin_loss_forward": _labels,
    "multilabel_margin_loss_backward": _labels,
    **dict.fromkeys(("ctc_loss", "_ctc_loss", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"), _spoken),
    "_cudnn_ctc_loss": _spoken_to_cudnn,
    "_ctc_loss_backward": _spoken_backward,
}
"""By the name of the operation."""
