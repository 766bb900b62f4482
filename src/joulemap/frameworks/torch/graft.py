"""A function of torch's with something of ours around its body, in the same frame.

A wrapper makes two calls of one, which takes half a microsecond, and is a frame in every traceback. So the
function is made again from its own source, with ours around its body, and every line is where it was. While
nobody listens, all that it does more is to ask whether anybody does.
"""

from __future__ import annotations

import ast
import inspect
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any

_AROUND = """
_call = _begins(self, args, kwargs) if {condition} else None
if _call is None:
    BODY
    return
_output = None
try:
    BODY_THAT_KEEPS_ITS_OUTPUT
finally:
    _ends(_call, _output)
"""
_SAME = ("co_code", "co_names", "co_varnames", "co_consts")


def grafted(function: FunctionType, condition: str, **ours: Any) -> FunctionType | None:
    """``function(self, *args, **kwargs)`` that, where ``condition`` holds, calls ``_begins`` with these
    before its body, and ``_ends`` after it with what that has returned and with its own result, or None where
    it fails. Both are in ``ours``, with all that the condition names. None where its source is not known."""
    definition = _definition(function.__code__)
    if definition is None or not _is_source_of(definition, function):
        return None
    around = _placed(_AROUND.format(condition=condition), definition)
    keeping = [_Keeping().visit(deepcopy(one)) for one in definition.body]
    definition.body = _Filled(BODY=definition.body, BODY_THAT_KEEPS_ITS_OUTPUT=keeping).visit(around).body
    return _made(definition, function, ours)


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
    """A function of the module that the other one is of, to which ``ours`` are known beside its globals."""
    module = ast.parse(f"def make({', '.join(ours)}):\n    BODY\n    return {definition.name}")
    whole = _Filled(BODY=[definition]).visit(module)
    made: dict[str, Any] = {}
    code = compile(whole, function.__code__.co_filename, "exec", dont_inherit=True)
    exec(code, function.__globals__, made)  # noqa: S102 - torch's own source
    again: FunctionType = made["make"](**ours)
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
    """Has what is returned known by a name."""

    def visit_Return(self, node: ast.Return) -> Any:
        keeps = ast.Assign([ast.Name("_output", ast.Store())], node.value or ast.Constant(None))
        returns = ast.Return(ast.Name("_output", ast.Load()))
        return [ast.fix_missing_locations(ast.copy_location(one, node)) for one in (keeps, returns)]
