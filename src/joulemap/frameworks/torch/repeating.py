"""Operations executed again in place: the same call on the same operands, its further results thrown away.

A kernel of ours stands in the dispatcher between autograd and the device, for the chosen operations only: it
sees every call of them, of every thread, forward and backward, and nothing else passes it. The program gets
the result of the first execution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.again import Again, Refused, Thread, device_of
from joulemap.frameworks.torch.caches import Operands
from joulemap.frameworks.torch.inputs import is_number, type_word
from joulemap.frameworks.torch.kernels import KEY, Kernels, alone

_TAKE_NUMBERS = ("add", "sub", "mul", "div", "true_divide", "floor_divide", "where")
"""PyTorch's own list, as far as operations are pure; ``where`` is never given any."""

STATISTICS = ("running_mean", "running_var")
"""What batch normalisation keeps."""


def operands(values: Sequence[Any]) -> Operands:
    """Of a call's arguments; a number may come as a tensor or not, and is none."""
    import torch

    found: list[tuple[tuple[int, ...], str]] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            shape, word = tuple(value.shape), type_word(value.dtype)
            found += [] if is_number(shape, word) else [(shape, word)]
        elif isinstance(value, (list, tuple)):
            found += [(shape, "") for shape, _ in operands(value)]  # of lists the profiler tells no types
    return tuple(found)


def safely_operands(values: Sequence[Any]) -> Operands:
    """Nothing where some tensor has no shape: a nested one is no target."""
    try:
        return operands(values)
    except RuntimeError:
        return ()


def overloads(op: str, writing: bool = False) -> list[Any]:
    """What a name of the profiler may stand for, as far as it can be executed again. Where it is only to be
    seen, it may be writing into what it is given and return nothing, as optimizers do: what returns that
    again must not pass Python, which has PyTorch crash."""
    import torch

    space, _, name = op.rpartition("::")
    try:
        packet = getattr(getattr(torch.ops, space or "aten"), name)
        every = [getattr(packet, one) for one in packet.overloads()]
    except (AttributeError, RuntimeError) as error:
        raise Refused(f"PyTorch has no operation {op}") from error
    reasons = {one: _impure(one, writing) or _takes_numbers(one, every) for one in every}
    pure = [overload for overload, why in reasons.items() if not why]
    if not pure:
        raise Refused(next(iter(reasons.values())))
    return pure


def _impure(overload: Any, writing: bool) -> str:
    """Why no call of an overload may be executed again; empty where one may."""
    import torch

    schema, has = overload._schema, torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        composite, chooses = (has(overload.name(), key) for key in ("CompositeImplicitAutograd", KEY))
        tags = {tag.name for tag in overload.tags}
    except RuntimeError:
        return "it does not pass PyTorch's dispatcher"
    if (schema.is_mutable and (schema.returns or not writing)) or "maybe_aliasing_or_mutating" in tags:
        return "it writes into what it is given"
    if any(one.alias_info is not None for one in schema.returns):
        return "it returns a view of what it is given"
    if "nondeterministic_seeded" in tags and not _argument(schema, "dropout_p"):
        return "it draws random numbers"
    if not any("Tensor" in str(one.type) for one in schema.arguments):
        return "it makes a tensor out of nothing"
    if composite:
        return "it is made of other operations"
    if chooses:
        return "it chooses its device itself"
    return ""


def _takes_numbers(overload: Any, every: Sequence[Any]) -> str:
    """Where another overload takes a number in a tensor's place, PyTorch may make a tensor of it, and hand it
    to us as a number again; few operations take it back."""
    kinds = [str(one.type) for one in overload._schema.arguments]
    others = [[str(one.type) for one in other._schema.arguments] for other in every if other is not overload]
    may = any(_stands_for(other, kinds) for other in others)
    name = overload._schema.name.rpartition("::")[2]
    return "it may be given numbers for tensors" if may and name not in _TAKE_NUMBERS else ""


def _stands_for(other: Sequence[str], kinds: Sequence[str]) -> bool:
    """Whether two overloads differ in nothing but numbers for tensors; one of numbers alone is not meant."""
    pairs = [(mine, theirs) for mine, theirs in zip(kinds, other, strict=False) if mine != theirs]
    return "Tensor" in other and bool(pairs) and all(pair == ("Tensor", "number") for pair in pairs)


def _argument(schema: Any, name: str) -> bool:
    return any(one.name == name for one in schema.arguments)


def draws(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this one call draws random numbers: dropout inside of attention does, where there is some."""
    return _argument(schema, "dropout_p") and bool(_given(schema, args, kwargs).get("dropout_p"))


def keeps_statistics(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this one call writes into running statistics, of which the schema of batch normalisation does
    not speak; its backward pass only reads them."""
    if not _argument(schema, STATISTICS[0]) or schema.name.endswith("_backward"):
        return False
    given = _given(schema, args, kwargs)
    return bool(given.get("training")) and given.get(STATISTICS[0]) is not None


def without_effect(
    schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a further execution: running statistics are written into copies."""
    if not keeps_statistics(schema, args, kwargs):
        return args, kwargs
    import torch

    def copied(name: str, value: Any) -> Any:
        return value.clone() if name in STATISTICS and isinstance(value, torch.Tensor) else value

    names = [one.name for one in schema.arguments]
    again = tuple(copied(name, value) for name, value in zip(names, args, strict=False))
    return again, {name: copied(name, value) for name, value in kwargs.items()}


def _given(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, with those that were left out."""
    defaults = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    names = [one.name for one in schema.arguments]
    return defaults | dict(zip(names, args, strict=False)) | dict(kwargs)


def below(overload: Any) -> Callable[..., Callable[[], Any]]:
    """A call of an operation, as the dispatcher would go on with it, ready to be executed. A Python number
    that was given for a tensor comes to us as a number again; one way into the dispatcher takes it back."""
    import torch

    lower = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    redispatch, declared = overload._handle.redispatch_boxed, overload._schema.arguments
    of_tensors = [number for number, one in enumerate(declared) if str(one.type) == "Tensor"]

    def ready(keys: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
        keys = keys & lower
        if any(isinstance(args[one], (int, float, complex)) for one in of_tensors if one < len(args)):
            return partial(overload._op_dk, keys.highestPriorityTypeId(), *args, **kwargs)
        return partial(redispatch, keys, *args, **kwargs)

    return ready


class Repeater(Again):
    """Kernels of ours for some operations. ``choose`` says which target a call belongs to, by its operation
    and operands."""

    def __init__(
        self,
        device: str,
        choose: Mapping[str, Mapping[Operands, int]],
        each_s: Mapping[int, float],
        cold: Mapping[tuple[str, Operands], str],
        thread: Thread,
    ) -> None:
        super().__init__(device, each_s, cold, thread)
        self._choose, self._kernels = choose, Kernels()

    def install(self) -> None:
        """Take part in the dispatch of the operations; those that cannot be are refused."""
        with alone():  # as far as it can be
            for op, targets in self._choose.items():
                self._join(op, targets)

    def _join(self, op: str, targets: Mapping[Operands, int]) -> None:
        try:
            known = overloads(op)
            if "::" in op.removeprefix("aten::"):
                raise Refused("it is not one of aten's, and may do what its schema does not say")
            for overload in known:
                self._kernels.put(overload, self._kernel(op, overload, targets))
        except Refused as why:
            self.refused |= dict.fromkeys(targets.values(), str(why))
        except (RuntimeError, TypeError):  # an older torch does not hand out the keys
            why_not = "this PyTorch does not let it be executed again"
            self.refused |= dict.fromkeys(targets.values(), why_not)

    def _kernel(self, op: str, overload: Any, targets: Mapping[Operands, int]) -> Callable[..., Any]:
        schema, ready, thread = overload._schema, below(overload), self.thread
        again_with = partial(without_effect, schema)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            execute = ready(keys, args, kwargs)
            if thread.inside:
                return self._inside(execute, targets, args, kwargs) if thread.again else execute()
            given = safely_operands((*args, *kwargs.values()))
            target = targets.get(given, -1)
            if target < 0 or not self._is_here(args):
                return execute()
            self.seen[target] += 1
            thread.inside = True
            try:
                result = execute()
                if target == self.target and self._may(target, schema, args, kwargs):
                    device = device_of(args)
                    self.again(target, (op, given), lambda: ready(keys, *again_with(args, kwargs)), device)
                self.wait(target, device_of(args))
                return result
            finally:
                thread.inside = False

        return kernel

    def _inside(
        self,
        execute: Callable[[], Any],
        targets: Mapping[Operands, int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """An operation in a module that is called again."""
        self.thread.again = False
        try:
            result = execute()
            target = targets.get(safely_operands((*args, *kwargs.values())), -1) if self.ease else -1
            if target >= 0 and self._is_here(args):
                self.wait(target, device_of(args))
            return result
        finally:
            self.thread.again = True

    def _is_here(self, first: Any) -> bool:
        """Whether a call is computed on the device; while a compiler or a graph looks on, nothing is."""
        device = device_of(first)
        if device is None or device.type != self.device:
            return False
        return self.device == "cpu" or not gpus.captures()

    def _may(self, target: int, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if target not in self.refused and draws(schema, args, kwargs):
            self.refused[target] = "it draws random numbers for its dropout"
        return target not in self.refused

    def remove(self) -> None:
        """Leave the dispatcher as it was; where other threads compute all the time, nothing is repeated."""
        self.target = -1
        self.forget()
        self._kernels.remove()
