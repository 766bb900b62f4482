"""A call site at run time: hands back what is to be called, or something that measures it.

``site(7, f)(a, b)`` stands where ``f(a, b)`` stood. Where ``f`` is none of the library's it is handed back
itself, so that the call is the program's own in every respect. Else a function of ours is called in between
(``between.py``), and a record is kept. Standard library only, and nothing that goes wrong here reaches the
program.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from functools import partial
from mmap import mmap
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

from joulemap.calls.apis import Apis
from joulemap.calls.between import between, unseen_by_compilers
from joulemap.calls.owner import Known
from joulemap.calls.places import Places
from joulemap.calls.sizes import PLAIN, UNKNOWN, Sizes, spelled
from joulemap.calls.store import (
    ENDED,
    ENDED_AT,
    MOST_WORDS,
    OPEN,
    PAGE_BITS,
    PAGE_SLOTS,
    SLOT,
    Full,
    Store,
)
from joulemap.calls.tracing import tracers

NO_CALL = -1
_loaded = sys.modules
NoneType = type(None)
_put, _put_end = SLOT.pack_into, ENDED.pack_into
_SLOT_BYTES, _LAST_SLOT = SLOT.size, PAGE_SLOTS - 1


class Isolation(Protocol):
    """Waits for the machine to be at rest before an outermost call, and again after it."""

    def before(self, site: int) -> None: ...
    def after(self, site: int) -> None: ...
    def gate(self) -> tuple[int, str, int]:
        """Of the call that just ended: when the wait for it began, how that ended, and when the tail did."""
        ...


isolation: Isolation | None = None
"""What is done around an outermost call, if anything."""

fence: Callable[[], None] | None = None
"""Waits at the end of a call until devices have done what it asked them for, if wanted."""

Spot = tuple[str, int, int, int, int]
_Open = tuple[Token[int], mmap, int, int, int, int]
"""The call around it, where its record is, its number, its site and its parent."""
_inside: ContextVar[int] = ContextVar("joulemap_call", default=NO_CALL)
_meter: CallMeter | None = None
_known: Known = Known()


def site(number: int | Spot, callee: Any) -> Any:
    """What to call in place of ``callee``; the callee itself where it is none of the library's. A site has a
    number, or in a patched file its file and span."""
    kind = type(callee)
    if kind is MethodType:
        ours = _known[id(callee.__func__)]
    elif kind is BuiltinFunctionType:
        owner = type(callee.__self__)
        ours = _known[id(callee) if owner is ModuleType or owner is NoneType else id(owner)]
    elif kind is FunctionType or kind is type:
        ours = _known[id(callee)]
    else:
        ours = _known.get(id(kind))
    if ours is False or _meter is None:
        return callee
    return _meter.between(number, callee)


def _compiled_site(number: int | Spot, callee: Any) -> Any:  # noqa: ARG001 - as ``site``
    """What ``torch.compile`` takes in place of ``site``, so that graphs stay as they were."""
    return callee


vars(site)["_torchdynamo_inline"] = _compiled_site


class CallMeter:
    """Keeps a record of each call that belongs to one of some libraries."""

    def __init__(
        self, folder: Path, libraries: Iterable[str], offset_ns: int, warn: Callable[[str], None]
    ) -> None:
        self.places = Places()
        self._store = Store(folder)
        self._apis = Apis(tuple(libraries), self._store)
        self._functions = self._apis.known
        self._sizes = Sizes()
        self._shapes: dict[tuple[Any, ...], int] = {(): 0}
        self._between: dict[int, Callable[..., Any]] = {}
        self._offset_ns, self._warn = offset_ns, warn
        self._numbers = itertools.count()
        self._page: tuple[int, Any] = (-1, None)
        self._tracers: list[Callable[[], bool]] = []
        self._modules = 0
        self._over = False

    def start(self) -> None:
        """Begin to answer the sites of this process; a forked child's calls are not recorded."""
        global _meter, _known
        _meter, _known = self, self._apis.owner.known
        os.register_at_fork(after_in_child=self.leave)

    def leave(self) -> None:
        """Write nothing from now on: in a forked child, whose parent goes on writing."""
        global _meter, _known
        self._over = True
        if _meter is self:
            _meter, _known = None, Known()

    def stop(self) -> None:
        """Stop recording; calls that are still open stay so."""
        if not self._over:
            self.leave()
            self._store.close()

    def between(self, number: int | Spot, callee: Any) -> Any:
        """Something that measures the call, or the callee where that is not wanted here."""
        try:
            if type(callee) is MethodType:
                api = self._functions.get((id(callee.__func__), id(type(callee.__self__))))
            else:
                api = self._functions.get(id(callee))
            if api is None:
                api = self._apis.of(callee)
            if api is None:
                return callee
            if len(_loaded) != self._modules:
                self._look_for_tracers()
            for is_tracing in self._tracers:
                if is_tracing():
                    return callee
            known = self.places.number_of(number) if isinstance(number, tuple) else number
            place = self._between.get(known) or self._new_place(known)
            return partial(place, callee, api)
        except Exception as error:  # noqa: BLE001 - the program goes on without us
            self._complain(error)
            return callee

    def _look_for_tracers(self) -> None:
        self._modules = len(_loaded)
        self._tracers = tracers()
        unseen_by_compilers(
            site, CallMeter.between, CallMeter._begin, CallMeter._end, *self._between.values()
        )

    def _new_place(self, number: int) -> Callable[..., Any]:
        """The site is written down when it is first seen to call the library."""
        caller = sys._getframe(3)
        if caller.f_globals.get("__name__") == "joulemap.calls.patched" and caller.f_back is not None:
            caller = caller.f_back
        self._store.put("site", [number, *self.places.describe(number, caller.f_code)])
        place = self._between[number] = between(number, caller, self._begin, self._end)
        unseen_by_compilers(place)
        return place

    def _begin(self, number: int, api: int, callee: Any, args: Any, kwargs: Any) -> _Open | None:
        """Put the call down as open. None where that fails: then there is nothing to end."""
        try:
            parent = _inside.get()
            size = shapes = own_size = 0
            for value in (*args, *kwargs.values()) if kwargs else args:
                if type(value) not in PLAIN:
                    size, shapes = self._measure_arguments(args, kwargs)
                    break
            if type(callee) is MethodType and self._sizes.arrays.get(type(callee.__self__)) is False:
                own_size = UNKNOWN
            elif type(callee) is not FunctionType:
                own_size = self._measure_object(callee)
            if isolation is not None and parent == NO_CALL:
                isolation.before(number)
            call = next(self._numbers)
            number_of_page, page = self._page
            if number_of_page != call >> PAGE_BITS:
                page = self._store.page(call >> PAGE_BITS)
                self._page = call >> PAGE_BITS, page
            at = (call & _LAST_SLOT) * _SLOT_BYTES
            token = _inside.set(call)
            now_ns = self._offset_ns + monotonic_ns()
            _put(page, at, parent, get_ident(), now_ns, size, own_size, number, api, shapes, OPEN, 0, 0)
        except Exception as error:  # noqa: BLE001 - the call is made, recorded or not
            self._complain(error)
            return None
        return token, page, at, call, number, parent

    def _measure_arguments(self, args: Any, kwargs: Any) -> tuple[int, int]:
        argument_bytes, seen = self._sizes.of((*args, *kwargs.values()) if kwargs else args)
        return argument_bytes, self._shape_number(seen) if seen else 0

    def _measure_object(self, callee: Any) -> int:
        """Of a method's object; a function has none."""
        kind = type(callee)
        owner = callee.__self__ if kind is MethodType or kind is BuiltinFunctionType else None
        if owner is None or type(owner) is ModuleType:
            return 0
        return self._sizes.of_object(owner)

    def _shape_number(self, seen: tuple[Any, ...]) -> int:
        try:
            number = self._shapes.get(seen)
        except TypeError:  # shapes that cannot be looked up
            return self._store.word("shapes", spelled(seen))
        if number is None:
            number = self._store.word("shapes", spelled(seen))
            # A type that the program made is not to live longer for it.
            lasts = all(getattr(dtype, "isbuiltin", 1) == 1 for _, dtype in seen)
            if lasts and len(self._shapes) < MOST_WORDS:
                self._shapes[seen] = number
        return number

    def _end(self, opened: _Open | None, outcome: int) -> None:
        """The call has returned or raised."""
        if opened is None:
            return
        token, page, at, call, number, parent = opened
        _inside.reset(token)
        if self._over:
            return
        try:
            if fence is not None:
                fence()
            _put_end(page, at + ENDED_AT, outcome, 0, self._offset_ns + monotonic_ns())
            if isolation is not None and parent == NO_CALL:
                isolation.after(number)
                self._store.put("gate", [call, *isolation.gate()])
        except Exception as error:  # noqa: BLE001 - its result is the program's, whatever becomes of the record
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Say once what went wrong; where there is no room, stop."""
        if isinstance(error, Full):
            self._warn(str(error))
            self.leave()
        else:
            self._warn(f"A call could not be recorded: {type(error).__name__}: {error}")
