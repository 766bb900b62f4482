"""Hooks into Keras 3 on TensorFlow: the scopes of layers, losses and optimizers, and the trainer's steps."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.tensorflow.paths import LayerPaths
from joulemap.frameworks.tensorflow.ranges import LAYER, PHASE
from joulemap.frameworks.tensorflow.watch import Watch
from joulemap.frameworks.tensorflow.wrapped import around

NAMES = {"compile_loss": "loss"}
"""Outermost scopes that are no layer's, where another name says more."""


def hook_keras(watch: Watch, patches: Patches) -> None:
    """Listen to Keras 3, which runs on TensorFlow."""
    for hook in (_scopes, _steps):
        watch.attempt(hook, watch, patches)


def _scopes(watch: Watch, patches: Patches) -> None:
    """Every scope that Keras opens: it has the layer at hand, and the ones around it on a stack."""
    from keras.src.backend.common import global_state
    from keras.src.backend.tensorflow.core import name_scope
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    paths, ranges, eagerly = LayerPaths(), watch.ranges, context.executing_eagerly
    enter, leave = name_scope.__enter__, name_scope.__exit__

    def path() -> str:
        stack = global_state.get_global_attribute("name_scope_stack")
        outermost = NAMES.get(stack[0].name, stack[0].name) if stack[0].caller is None else stack[0].name
        names = [outermost, *(scope.name for scope in stack[1:])]
        return paths.path(zip(names, (scope.caller for scope in stack), strict=True))

    def opened_eagerly(scope: Any) -> None:
        phase = [PHASE + "optimizer"] if isinstance(scope.caller, BaseOptimizer) else []
        ranges.enter(scope, *phase, LAYER + path())

    def opened_in_graph(scope: Any) -> None:
        if scope._pop_on_exit:
            graph = ops.get_default_graph()
            watch.capture.opened(graph, graph.get_name_scope(), path())

    @functools.wraps(enter)
    def entered(scope: Any) -> Any:
        result = enter(scope)
        if not eagerly():
            watch.attempt(opened_in_graph, scope)
        elif ranges.open:
            watch.attempt(opened_eagerly, scope)
        return result

    @functools.wraps(leave)
    def left(scope: Any, *args: Any, **kwargs: Any) -> Any:
        if ranges.any:
            watch.attempt(ranges.leave, scope)
        return leave(scope, *args, **kwargs)

    patches.put(name_scope, "__enter__", entered)
    patches.put(name_scope, "__exit__", left)


def _steps(watch: Watch, patches: Patches) -> None:
    """A trainer's ``train_function`` and its sisters, whoever calls them."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    for label in ("train", "test", "predict"):
        attribute = f"{label}_function"
        patches.put(TensorFlowTrainer, attribute, AnnouncedFunction(attribute, label, watch))


class AnnouncedFunction:
    """An attribute that holds a function and hands it out with its calls announced as steps.

    The object keeps the plain function: copies, checkpoints and exports of it are what they always were. A
    ``tf.function`` is handed out as it is; it announces itself.
    """

    def __init__(self, name: str, label: str, watch: Watch) -> None:
        self._name, self._label, self._watch = name, label, watch

    def __get__(self, instance: Any, kind: type) -> Any:
        if instance is None:
            raise AttributeError(f"type object '{kind.__name__}' has no attribute '{self._name}'")
        try:
            function = vars(instance)[self._name]
        except KeyError:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{self._name}'") from None
        if self._watch.on and isinstance(function, FunctionType):
            return self._announced(function)
        return function

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = getattr(value, "_joulemap_plain", value)

    def __delete__(self, instance: Any) -> None:
        del vars(instance)[self._name]

    def _announced(self, function: FunctionType) -> Any:
        announced = around(function, self._watch, self._begin, self._end)
        vars(announced)["_joulemap_plain"] = function
        return announced

    def _begin(self, /, *_: Any, **__: Any) -> bool:
        self._watch.steps.begin(self._label)
        return True

    def _end(self, _: bool) -> None:
        self._watch.steps.end()
