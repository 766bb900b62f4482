"""Modules called again in place: the same forward pass on the same inputs, without gradients, its further
results thrown away.

A module may do anything. One that keeps something of its own, or is given an object that may keep it (a cache
of keys and values), is never called again. Any other is, once, and watched: just before it draws random
numbers, or writes into a tensor that was there before, that is over, and so is this module. What it writes
into its own buffers, as batch normalisation does into its statistics, is written into copies. The program's
own calls are never watched: whoever looks on between a program and its operations may change them.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.again import Thread
from joulemap.frameworks.torch.aside import compiler_looks, instead, unseen
from joulemap.frameworks.torch.casts import Casts, uncached
from joulemap.frameworks.torch.graphs import calls_compiled, is_compiled
from joulemap.frameworks.torch.repeating import STATISTICS, draws, keeps_statistics
from joulemap.frameworks.watch import from_a_signal

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class _Depth(threading.local):
    """How deep this thread is in calls of modules."""

    now = 0


class ModuleRepeater:
    """Counts the calls of some modules, by their paths, and may call them again. What ``thread`` says is
    common to all who execute targets: the operations of a module that is called again are none."""

    def __init__(self, targets: Mapping[str, int], thread: Thread) -> None:
        self._targets, self._thread = targets, thread
        self.target, self.more, self.ease = -1, 0, 0.0
        self.seen: Counter[int] = Counter()
        self.extra: Counter[int] = Counter()
        self.refused: dict[int, str] = {}
        self._watched: set[int] = set()
        self._copies: dict[int, dict[str, Any]] = {}
        self._casts = Casts()
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._depth = _Depth()
        self._patches = Patches()

    def install(self) -> None:
        """Take part in every call of a module, but for what compiled functions call: the compiler looks at
        that, and would look at us."""
        if not self._targets:
            return
        from torch.nn import Module

        original = Module._call_impl
        thread, depth, looks = self._thread, self._depth, compiler_looks()

        @functools.wraps(original)
        def called(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if thread.inside or looks():
                return original(module, *args, **kwargs)
            target = self._target_of(module)
            depth.now += 1
            try:
                if target is None:
                    return original(module, *args, **kwargs)
                return self._counted(target, functools.partial(original, module, *args, **kwargs))
            finally:
                depth.now -= 1

        instead(called, original)
        self._patches.put(Module, "_call_impl", unseen(called))

    def remove(self) -> None:
        """Leave the class as it was."""
        self._patches.restore()

    def take_counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """What was seen and added since this was last asked."""
        taken = dict(self.seen), dict(self.extra)
        self.seen, self.extra = Counter(), Counter()
        return taken

    def _target_of(self, module: Any) -> int | None:
        if not self._depth.now and module not in self._roots:
            self._roots.add(module)
            for path, inner in module.named_modules():
                for name in (path, f"{type(module).__name__}.{path}"):
                    if name.replace(".", "/") in self._targets:
                        self._known[inner] = self._targets[name.replace(".", "/")]
        return self._known.get(module)

    def _counted(self, target: int, call: functools.partial[Any]) -> Any:
        if gpus.captures():
            return call()
        self.seen[target] += 1
        if target not in self._watched:
            self._watched.add(target)
            return self._watch(target, call)
        result = call()
        if target == self.target and self.more and target not in self.refused:
            self._again(target, call)
        return result

    def _watch(self, target: int, call: functools.partial[Any]) -> Any:
        """The program's own call; and once more, looked at, where nothing speaks against it so far."""
        module, *args = call.args
        why = _why_not(module, args, call.keywords)
        before = _state(module)
        with calls_compiled() as compiled:
            result = call()
        if not why and _state(module) != before:
            why = "it keeps something of its own"
        if not why and compiled():
            why = "it calls something that is compiled, and would be anew without gradients"
        if not why:
            observer = _Observer(module)
            why = self._observed(observer, module, tuple(args), call.keywords)
            self._copies[target] = {name: observer.own[name] for name in observer.written}
            self._casts.watched(target, observer.cast)
        if why:
            self.refused[target] = why
        return result

    def _observed(
        self, observer: _Observer, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """Call a module again with copies of its buffers, until it does something that must not be done
        twice: what that is, which it does not come to."""
        import torch

        self._thread.inside = True
        try:
            with torch.no_grad(), uncached(), observer.mode():
                torch.func.functional_call(module, observer.own, args, dict(kwargs))
        except _Twice as why:
            return str(why)
        except Exception as error:
            if from_a_signal(error):
                raise
            return f"it could not be called again: {type(error).__name__}"
        finally:
            self._thread.inside = False
        return ""

    def _again(self, target: int, call: functools.partial[Any]) -> None:
        import torch

        self._thread.inside = self._thread.again = True
        (module, *args), copies = call.args, self._copies.get(target)
        try:
            with torch.no_grad(), self._casts.as_in_the_call_before(target, module):
                for _ in range(self.more):
                    if copies:
                        torch.func.functional_call(module, copies, tuple(args), dict(call.keywords))
                    else:
                        call()
                    self.extra[target] += 1
        except Exception as error:
            if from_a_signal(error):
                raise
            self.refused[target] = f"it could not be called again: {type(error).__name__}"
        finally:
            self._thread.inside = self._thread.again = False


def _why_not(module: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    """What speaks against calling a module twice before it is called once."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    if any(map(is_compiled, module.modules())):
        return "it is compiled, or a part of it, and would be anew without gradients"
    if any(getattr(one, name) for one in module.modules() for name in hooks):
        return "it has hooks"
    strange = _strange((*args, *kwargs.values()))
    return f"it is given a {strange}, which may keep something" if strange else ""


def _strange(value: Any) -> str:
    """The type of what is neither a tensor nor a plain value, in there."""
    import torch

    if isinstance(value, (list, tuple, set)):
        return next(filter(None, map(_strange, value)), "")
    if isinstance(value, dict):
        return _strange(tuple(value.values()))
    plain = isinstance(value, (torch.Tensor, torch.dtype, torch.device, *_PLAIN))
    return "" if plain else type(value).__name__


def _state(module: Any) -> list[dict[str, int]]:
    """What its attributes are, its modules' as well."""
    return [{name: id(value) for name, value in vars(one).items()} for one in module.modules()]


class _Twice(BaseException):
    """Something that must not be done twice, just before it is; a module that catches errors lets it pass."""


class _Observer:
    """Sees every operation of a module's call before it is executed: one that must not be twice is not; and
    which of its own buffers, which are copies, were written into, and which weights were cast (their ids)."""

    def __init__(self, module: Any) -> None:
        self.own = {name: one.clone() for name, one in module.named_buffers()}
        self.written: set[str] = set()
        self.cast: list[int] = []
        self._made: set[int] = set()
        self._kept: list[Any] = []

    def mode(self) -> Any:
        """Looks on while it is entered."""
        from torch import nn, ops
        from torch.utils._python_dispatch import TorchDispatchMode

        observer = self

        class Looking(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                observer.stop_twice(func, args, kwargs or {})
                if func is ops.aten._to_copy.default and isinstance(args[0], nn.Parameter):
                    observer.cast.append(id(args[0]))
                result = func(*args, **(kwargs or {}))
                observer.keep(func._schema, result)
                return result

        return Looking()

    def stop_twice(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """``_Twice`` for what writes into a tensor that was there before, or draws random numbers."""
        schema = func._schema
        names = [one.name for one in schema.arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        written = [
            given.get(one.name)
            for one in schema.arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]
        if keeps_statistics(schema, args, kwargs):
            written += [given.get(one) for one in STATISTICS]
        if not all(self._is_ours(one) for value in written for one in _tensors(value)):
            raise _Twice("it writes into a tensor that was there before")
        random = "nondeterministic_seeded" in {tag.name for tag in func.tags} and "dropout_p" not in names
        if (random and given.get("train") is not False) or draws(schema, args, kwargs):
            raise _Twice("it draws random numbers")

    def keep(self, schema: Any, result: Any) -> None:
        """What an operation has made is nobody else's."""
        if not any(one.alias_info is not None for one in schema.returns):
            made = _tensors(result)
            self._kept += made  # so that no other tensor takes their place in memory meanwhile
            self._made |= {_storage(one) for one in made}

    def _is_ours(self, tensor: Any) -> bool:
        """Whether nobody else has what was written: the call made it, or it is a buffer of the module."""
        here = _storage(tensor)
        mine = {name for name, one in self.own.items() if _storage(one) == here}
        self.written |= mine
        return here in self._made or bool(mine)


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
