"""A function of torch's with something of ours around its body, in the same frame.

A wrapper makes two calls of one, which takes half a microsecond, and is a frame in every traceback. So the
function is made again from its own source, with ours around its body, and every line is where it was. While
nobody listens it runs torch's own code, and does nothing more at all.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from textwrap import indent
from types import CodeType, FunctionType
from typing import Any

from joulemap.frameworks.torch.quick import Quick

_BEGINS, _ENDS = "joulemap: a call begins", "joulemap: a call ends"
_KNOWS_BOTH = f"_quick = {'joulemap: quick'!r}"
_PARTS = (
    *("now", "note", "identity", "thread", "grad", "profiled", "differentiates", "ends_in_full"),
    *("kind", "whole", "tensor", "numbers", "count", "modes", "traces"),
)
_NOTES_ITS_END = """
_quick.open = None
_quick.inside = 0
_quick.function.__code__ = _quick.heard
if _quick.taken is _open:
    _ends_in_full(_open, False)
else:
    _note((_began, _now(), _open[2]))
"""
_QUICKLY = f"""
{chr(10).join(f"_{part} = {f'joulemap: {part}'!r}" for part in _PARTS)}
_began = _now()
_me = _thread()
if (
    _identity(self) == _quick.module
    and _me == _quick.thread
    and (
        _began < _quick.until_ns
        if _quick.open is None
        else _quick.pending and _quick.open[1] == _me
    )
    and _grad() is _quick.learns
    and not (_quick.learns and (not self.training or _differentiates() != -1))
    and not _profiled()
    and not _quick.captures()
):
    _open = _quick.open or (_began, _me, _quick.label)
    if _quick.learns:
        try:
            _quick.function.__code__ = _quick.own
            _quick.inside = _me
            _quick.open = _open
            _quick.pending = None
            BODY
            return
        finally:
            _quick.function.__code__ = _quick.heard
            _quick.inside = 0
    _one = args[0] if args else None
    if _kind(_one) is not _tensor:
        for _one in [*args, *kwargs.values()]:
            if _kind(_one) is _tensor:
                break
    _given = (_numbers if _kind(_one) is _tensor and not _modes() and _traces() is None else _count)(_one)
    if _kind(_given) is _whole and _quick.least <= _given <= _quick.most:
        _one = None
        try:
            _quick.function.__code__ = _quick.own
            _quick.inside = _me
            _quick.open = _open
            BODY_THAT_NOTES_ITS_END
            {indent(_NOTES_ITS_END, " " * 12).strip()}
            return
        except BaseException:
            _quick.function.__code__ = _quick.heard
            _quick.inside = 0
            _quick.open = None
            if _quick.taken is _open:
                _ends_in_full(_open, True)
            raise
"""
_AROUND = f"""
_one = None
_begins = {_BEGINS!r}
_call = _begins(self, args, kwargs)
if _call is None:
    BODY
    return
_output = None
try:
    BODY_THAT_KEEPS_ITS_OUTPUT
finally:
    _quick.function.__code__ = _quick.heard
    if _call.outermost:
        _quick.threads.inside = False
    _ends = {_ENDS!r}
    _ends(_call, _output)
"""
Begins = Callable[[Any, Any, Any], Any]
Ends = Callable[[Any, Any], None]
_SAME = ("co_code", "co_names", "co_varnames", "co_consts")


def grafted(
    function: FunctionType, begins: Begins, ends: Ends, quick: Quick, noting: Mapping[str, Any]
) -> FunctionType | None:
    """``function(self, *args, **kwargs)`` that calls ``begins`` with these before its body, and ``ends``
    after it with what that has returned and with its own result, or None where it fails. What it calls is
    among the constants of its code, so that the code of ``function`` can be put in its place, and it in that
    of the other one again, in the middle of a call, too: ``quick`` knows both, and it is heard again before
    anything else is called. With all that it takes for ``noting`` them, steps like the last one are noted by
    the function itself. None where its source is not known."""
    definition = _definition(function.__code__)
    if definition is None or not _is_source_of(definition, function):
        return None
    around = _placed(_KNOWS_BOTH + (_QUICKLY if noting else "") + _AROUND, definition)
    keeping, ending = (
        [_Keeping(then).visit(deepcopy(one)) for one in definition.body] for then in ("", _NOTES_ITS_END)
    )
    bodies = {
        "BODY": definition.body,
        "BODY_THAT_KEEPS_ITS_OUTPUT": keeping,
        "BODY_THAT_NOTES_ITS_END": ending,
    }
    definition.body = _Filled(**bodies).visit(around).body
    parts = {f"joulemap: {name}": part for name, part in {"quick": quick, **noting}.items()}
    return _made(definition, function, {_BEGINS: begins, _ENDS: ends, **parts})


def _definition(code: CodeType) -> ast.FunctionDef | None:
    """The source of a function by itself, its lines and columns as they are in its file."""
    try:
        [block] = ast.parse("if 1:\n" + inspect.getsource(code)).body
    except (OSError, SyntaxError):  # none, or not of this function any more
        return None
    definition = block.body[0] if isinstance(block, ast.If) else None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list or code.co_freevars:
        return None
    ast.increment_lineno(definition, code.co_firstlineno - 2)
    return definition


def _is_source_of(definition: ast.FunctionDef, function: FunctionType) -> bool:
    """Whether what runs was made from it, and the names in it mean what they say."""
    again = _made(deepcopy(definition), function, {}).__code__
    given = again.co_varnames[: again.co_argcount + 2] == ("self", "args", "kwargs")
    return given and all(getattr(again, name) == getattr(function.__code__, name) for name in _SAME)


def _made(definition: ast.FunctionDef, function: FunctionType, ours: dict[str, Any]) -> FunctionType:
    """A function of the module that the other one is of, with ``ours`` in the place of texts."""
    whole = ast.Module([definition], type_ignores=[])
    made: dict[str, Any] = {}
    exec(compile(whole, function.__code__.co_filename, "exec", dont_inherit=True), function.__globals__, made)  # noqa: S102 - torch's own source
    again: FunctionType = made[definition.name]
    constants = [ours.get(one, one) if isinstance(one, str) else one for one in again.__code__.co_consts]
    again.__code__ = again.__code__.replace(co_consts=tuple(constants))
    return again


def _placed(text: str, where: ast.AST) -> ast.Module:
    """Statements that all stand in one place."""
    module = ast.parse(text)
    for node in ast.walk(module):
        ast.copy_location(node, where)
    return module


class _Filled(ast.NodeTransformer):
    """Puts statements in the place of names."""

    def __init__(self, **parts: list[ast.stmt]) -> None:
        self._parts = parts

    def visit_Expr(self, node: ast.Expr) -> Any:
        named = isinstance(node.value, ast.Name) and self._parts.get(node.value.id)
        return named or node


class _Keeping(ast.NodeTransformer):
    """Has what is returned known by a name, and something done before it is."""

    def __init__(self, then: str) -> None:
        self._then = then

    def visit_Return(self, node: ast.Return) -> Any:
        keeps = ast.Assign([ast.Name("_output", ast.Store())], node.value or ast.Constant(None))
        returns = ast.Return(ast.Name("_output", ast.Load()))
        then = _placed(self._then, node).body
        return [ast.fix_missing_locations(ast.copy_location(one, node)) for one in (keeps, *then, returns)]
