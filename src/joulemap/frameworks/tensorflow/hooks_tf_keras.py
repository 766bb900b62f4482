"""Hooks into Keras 2 (``tf_keras``, or ``keras`` before 3): the scopes of layers, and the optimizer."""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.tensorflow.paths import LayerPaths
from joulemap.frameworks.tensorflow.ranges import LAYER, PHASE
from joulemap.frameworks.tensorflow.watch import Watch
from joulemap.frameworks.tensorflow.wrapped import after, around


def hook_tf_keras(package: str, watch: Watch, patches: Patches) -> None:
    """Listen to the Keras 2 in ``package``; its steps announce themselves to TensorFlow."""
    for hook in (_layers, _optimizers):
        watch.attempt(hook, package, watch, patches)


@dataclass
class _Call:
    """A layer that is being called, and whether the scope of this call has been seen."""

    manager: Any
    seen: bool = False


class _Calls(threading.local):
    """The calls that are open on this thread, from the outermost on."""

    def __init__(self) -> None:
        self.stack: list[_Call] = []

    def forget(self, manager: Any) -> None:
        """The call of ``manager`` is over, and so is what it left open."""
        if any(call.manager is manager for call in self.stack):
            while self.stack.pop().manager is not manager:
                pass


def _layers(package: str, watch: Watch, patches: Patches) -> None:
    """A layer's call enters a call context, opens its scope, and then enters the context of its precision."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    utils = importlib.import_module(f"{package}.src.engine.base_layer_utils")
    precision = importlib.import_module(f"{package}.src.mixed_precision.autocast_variable")
    call, inside = utils.CallContextManager, precision.enable_auto_cast_variables
    calls, paths = _Calls(), LayerPaths()

    def path() -> str:
        layers = [one.manager._state["layer"] for one in calls.stack]
        return paths.path((layer.name, layer) for layer in layers)

    def entered(manager: Any) -> None:
        calls.stack.append(_Call(manager))
        if watch.ranges.open and context.executing_eagerly():
            watch.ranges.enter(manager, LAYER + path())

    def left(manager: Any, *_: Any) -> None:
        calls.forget(manager)
        if watch.ranges.any:
            watch.ranges.leave(manager)

    def scope_opened(_: Any) -> None:
        if calls.stack and not calls.stack[-1].seen and not context.executing_eagerly():
            calls.stack[-1].seen = True
            graph = ops.get_default_graph()
            watch.capture.opened(graph, graph.get_name_scope(), path())

    patches.put(call, "__enter__", after(call.__enter__, watch, entered))
    patches.put(call, "__exit__", after(call.__exit__, watch, left))
    patches.put(inside, "__enter__", after(inside.__enter__, watch, scope_opened))


def _optimizers(package: str, watch: Watch, patches: Patches) -> None:
    """The optimizer's part of an eager program."""
    from tensorflow.python.eager import context

    def begin(optimizer: Any, /, *_: Any, **__: Any) -> Any:
        if not watch.ranges.open or not context.executing_eagerly():
            return None
        watch.ranges.enter(optimizer, PHASE + "optimizer", LAYER + optimizer.name)
        return optimizer

    for module, name in (("optimizer", "_BaseOptimizer"), ("legacy.optimizer_v2", "OptimizerV2")):
        kind = getattr(importlib.import_module(f"{package}.src.optimizers.{module}"), name)
        ours = around(kind.apply_gradients, watch, begin, watch.ranges.leave)
        patches.put(kind, "apply_gradients", ours)
