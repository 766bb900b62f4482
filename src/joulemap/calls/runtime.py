"""A call site at run time: hands back what is to be called, or something that measures it.

``site(7, f)(a, b)`` stands where ``f(a, b)`` stood. Where ``f`` is none of the library's it is handed back
itself, so that the call is the program's own in every respect. Else a function of ours is called in between
(``between.py``), and a record is kept. Standard library only, and nothing that goes wrong here reaches the
program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

from joulemap.calls.apis import Api, Apis
from joulemap.calls.between import between, unseen_by_compilers
from joulemap.calls.owner import is_bound_by_nanobind
from joulemap.calls.places import Places
from joulemap.calls.room import DEEP, Room, take_four_frames
from joulemap.calls.sizes import PLAIN, UNKNOWN, Sizes, spelled
from joulemap.calls.store import (
    BEGUN,
    ENDED,
    ENDED_AT,
    MOST_WORDS,
    Full,
    Store,
)
from joulemap.calls.tracing import tracers
from joulemap.calls.watchers import filtered_handlers

NO_CALL = -1
_loaded = sys.modules
NoneType = type(None)
_put_begun, _put_ended = BEGUN.pack_into, ENDED.pack_into


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
_Around = tuple[int, int]
"""The number of a call, and how many there are from the outermost to it."""
_Open = tuple[mmap, int, int, int, int, _Around]
"""Where its record is, its number, its site, its thread and the call around it."""
_NOTHING_AROUND: _Around = (NO_CALL, 0)
_inside: dict[int, _Around] = {}
"""The innermost open call of each thread: calls begin and end like frames, whatever the program awaits."""
_meter: CallMeter | None = None
_nothing: dict[int, bool] = {}
_answer = _nothing.get


def site(number: int | Spot, callee: Any) -> Any:
    """What to call in place of ``callee``; the callee itself where it is none of the library's. A site has a
    number, or in a patched file its file and span."""
    try:
        kind = type(callee)
        function = None
        if kind is MethodType:
            function = callee.__func__
            ours = _answer(id(function))
        elif kind is BuiltinFunctionType:
            owner = type(callee.__self__)
            ours = _answer(id(callee) if owner is ModuleType or owner is NoneType else id(owner))
        elif kind is FunctionType or kind is type:
            ours = _answer(id(callee))
        else:
            ours = _answer(id(kind))
            if ours is None:
                ours = _answer(id(callee))
        if ours is False or _meter is None:
            return callee
        return _meter.between(number, callee, function)
    except RecursionError:  # the program is near its limit: what it calls may still have room
        return callee


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
        self._arrays = self._sizes.arrays
        self._shapes: dict[tuple[Any, ...], int] = {(): 0}
        self._known_sites: set[int] = set()
        self._room = Room()
        self._too_deep = False
        self._offset_ns, self._warn = offset_ns, warn
        self._tracers: list[Callable[[], bool]] = []
        self._modules = 0
        self._over = False

    def start(self) -> None:
        """Begin to answer the sites of this process; a forked child's calls are not recorded."""
        global _meter, _answer
        _meter, _answer = self, self._apis.owner.known.get
        filtered_handlers.start()
        os.register_at_fork(after_in_child=self.leave)

    def leave(self) -> None:
        """Write nothing from now on: in a forked child, whose parent goes on writing."""
        global _meter, _answer
        self._over = True
        if _meter is self:
            _meter, _answer = None, _nothing.get
            filtered_handlers.stop()
            self._room.stop()

    def stop(self) -> None:
        """Stop recording; calls that are still open stay so."""
        if not self._over:
            self.leave()
            self._store.close()
        if self._too_deep:
            self._warn("Calls right at the recursion limit of Python could not be recorded, or stay open.")

    def between(self, number: int | Spot, callee: Any, function: Any) -> Any:
        """Something that measures the call, or the callee where that is not wanted here; ``function`` is that
        of a method."""
        api: Api | None = None
        try:
            if function is None:
                api = self._functions.get(id(callee))
            else:
                api = self._functions.get((id(function), id(type(callee.__self__))))
            if api is None:
                api = self._apis.of(callee)
            if api is None:
                return callee
            if self._room.taken:
                take_four_frames()
            if len(_loaded) != self._modules:
                self._look_for_tracers()
            for is_tracing in self._tracers:
                if is_tracing():
                    return callee
            # A method whose object is what is to be called: nothing binds an argument quicker.
            return MethodType(api.places.get(number) or self._new_place(number, api), callee)
        except RecursionError:
            self._too_deep |= api is not None
            return callee
        except Exception as error:  # noqa: BLE001 - the program goes on without us
            self._complain(error)
            return callee

    def _look_for_tracers(self) -> None:
        self._modules = len(_loaded)
        self._tracers = tracers()
        ours = (
            place
            for api in list(self._functions.values())
            if api is not None
            for place in api.places.values()
        )
        unseen_by_compilers(site, CallMeter.between, CallMeter._begin, CallMeter._end, *ours)

    def _new_place(self, at: int | Spot, api: Api) -> Callable[..., Any]:
        """The site is written down when it is first seen to call the library."""
        number = self.places.number_of(at) if isinstance(at, tuple) else at
        caller = sys._getframe(3)
        if caller.f_globals.get("__name__") == "joulemap.calls.patched" and caller.f_back is not None:
            caller = caller.f_back
        if number not in self._known_sites:
            self._store.put("site", [number, *self.places.describe(number, caller.f_code)])
            self._known_sites.add(number)
        place = between(number, api.number, caller, self._begin, self._end)
        api.places[at] = place
        unseen_by_compilers(place)
        return place

    def _begin(self, number: int, api: int, callee: Any, args: Any, kwargs: Any) -> _Open | None:
        """Put the call down as open. None where that fails: then there is nothing to end."""
        try:
            thread = get_ident()
            around = _inside.get(thread, _NOTHING_AROUND)
            parent, depth = around
            size = shapes = own_size = 0
            for value in (*args, *kwargs.values()) if kwargs else args:
                if id(type(value)) not in PLAIN:
                    size, shapes = self._measure_arguments(args, kwargs)
                    break
            kind = type(callee)
            if kind is MethodType and self._arrays.get(id(type(callee.__self__))) is False:
                own_size = UNKNOWN
            elif kind is not FunctionType:
                own_size = self._measure_object(callee)
            if depth >= DEEP:
                self._room.make(thread, depth + 1)
            elif isolation is not None and not depth:
                isolation.before(number)
            call, page, at = next(self._store.slots, None) or self._store.next_page()
            _inside[thread] = (call, depth + 1)
            now_ns = self._offset_ns + monotonic_ns()
            _put_begun(page, at, parent, thread, now_ns, size, own_size, number, api, shapes)
        except RecursionError:
            self._too_deep = True
            return None
        except Exception as error:  # noqa: BLE001 - the call is made, recorded or not
            self._complain(error)
            return None
        return page, at, call, number, thread, around

    def _measure_arguments(self, args: Any, kwargs: Any) -> tuple[int, int]:
        argument_bytes, seen = self._sizes.of((*args, *kwargs.values()) if kwargs else args)
        return argument_bytes, self._shape_number(seen) if seen else 0

    def _measure_object(self, callee: Any) -> int:
        """Of a method's object; a function has none."""
        kind = type(callee)
        bound = kind is MethodType or kind is BuiltinFunctionType or is_bound_by_nanobind(kind)
        owner = callee.__self__ if bound else None
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
        page, at, call, number, thread, around = opened
        _inside[thread] = around
        if self._over:
            return
        try:
            if fence is not None:
                self._wait(fence)
            _put_ended(page, at + ENDED_AT, outcome, self._offset_ns + monotonic_ns())
            depth = around[1]
            if depth >= DEEP:
                self._make_room(thread, depth)
            elif isolation is not None and not depth:
                isolation.after(number)
                self._store.put("gate", [call, *isolation.gate()])
        except RecursionError:
            self._too_deep = True
        except Exception as error:  # noqa: BLE001 - its result is the program's, whatever becomes of the record
            self._complain(error)

    def _make_room(self, thread: int, frames: int) -> None:
        if frames > DEEP:
            self._room.make(thread, frames)
        else:
            self._room.leave(thread)

    def _wait(self, for_devices: Callable[[], None]) -> None:
        """What was computed may have failed: the program hears of it where it asks for the result."""
        try:
            for_devices()
        except Exception as error:  # noqa: BLE001 - its errors are the program's
            self._warn(f"Devices could not be waited for after a call: {type(error).__name__}.")

    def _complain(self, error: Exception) -> None:
        """Say once what went wrong; where there is no room, stop."""
        if isinstance(error, Full):
            self._warn(str(error))
            self.leave()
        else:
            self._warn(f"A call could not be recorded: {type(error).__name__}: {error}")
