"""Programs that meet with the dispatcher themselves, each with all that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

X = torch.randn(600, 1024, generator=torch.Generator().manual_seed(1))


class Names(TorchDispatchMode):
    """Hears of every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(str(op))
        return op(*args, **(kwargs or {}))


class Eager(torch.Tensor):
    """Hears of every function that it is given to."""

    heard: list[str] = []  # noqa: RUF012 - of all of them

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.heard.append(str(function))
        return super().__torch_function__(function, types, args, kwargs)


class Wrapped(torch.Tensor):
    """Is no memory, but has a tensor that is."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(op(*[getattr(one, "inner", one) for one in args], **(kwargs or {})))


def mode() -> Any:
    x = X.clone().requires_grad_()
    with Names() as names:
        (x.prod(1).sum() + functional.layer_norm(x, (1024,)).square().sum()).backward()
    return names.heard, x.grad


def functions() -> Any:
    Eager.heard.clear()
    result = (X.as_subclass(Eager) * 2 + X).relu()
    return type(result).__name__, result.as_subclass(torch.Tensor), list(Eager.heard)


def wrapped() -> Any:
    return (Wrapped(X) * 2 + 3).relu().inner


def transforms() -> Any:
    few = X[:4, :40]
    return (
        torch.func.vmap(lambda row: torch.softmax(row, 0) * 2)(X),
        torch.func.jacrev(lambda x: (x @ x.t()).tanh())(few),
        torch.func.jacfwd(lambda x: (x @ x.t()).tanh())(few),
        torch.func.functionalize(lambda x: x.clone().add_(1).mul(2))(X),
    )


def forward_gradients() -> Any:
    with forward_ad.dual_level():
        result = functional.layer_norm(forward_ad.make_dual(X, X) * X + torch.ones_like(X), (1024,))
        return forward_ad.unpack_dual(result).tangent


def graphs() -> Any:
    traced = make_fx(lambda x: functional.gelu(x @ x.t()).sum())(X)
    return traced.code, torch.cond(X.sum() > 0, torch.sin, torch.cos, (X,))


def counted() -> Any:
    with FlopCounterMode(display=False) as counter:
        functional.linear(X, X)
    return counter.get_total_flops()


def layouts() -> Any:
    ragged = torch.nested.nested_tensor([X[:300], X[300:]], layout=torch.jagged)
    sparse, pairs = X.relu().to_sparse(), torch.view_as_complex(X.view(600, 512, 2))
    whole = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    return (
        (ragged * 2).values(),
        torch.sparse.mm(sparse, X.t()),
        (pairs.conj().imag * 2, (pairs * pairs.conj()).real),
        whole.dequantize(),
        tuple((X.to("meta") @ X.to("meta").t()).shape),
    )


def again() -> Any:
    x = X.clone().requires_grad_()
    checkpoint(lambda x: (x @ x.t()).tanh(), x, use_reentrant=False).sum().backward()
    return x.grad


def numbers() -> Any:
    return (
        3 - X,
        3 / X,
        torch.pow(2, X),
        torch.where(X > 0, 1.0, X),
        torch.lerp(X, X.t().reshape(X.shape), 0.3),
    )


def random() -> Any:
    torch.manual_seed(0)
    return functional.dropout(X), torch.bernoulli(X.sigmoid()), torch.multinomial(X.abs(), 3)


def fails() -> Any:
    try:
        return torch.mm(X, X)
    except RuntimeError as error:
        return str(error)


ODDITIES: list[Callable[[], Any]] = [
    mode,
    functions,
    wrapped,
    transforms,
    forward_gradients,
    graphs,
    counted,
    layouts,
    again,
    numbers,
    random,
    fails,
]


def is_same(one: Any, other: Any) -> bool:
    """To the bit, in tensors too."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
