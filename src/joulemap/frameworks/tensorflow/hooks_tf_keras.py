"""Hooks into Keras 2 (``tf_keras``, or ``keras`` before 3): the scopes of layers, and the optimizer."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from joulemap.frameworks.tensorflow.patches import Patches, after, around
from joulemap.frameworks.tensorflow.paths import LayerPaths
from joulemap.frameworks.tensorflow.ranges import LAYER, PHASE
from joulemap.frameworks.tensorflow.watch import Watch


def hook_tf_keras(package: str, watch: Watch, patches: Patches) -> None:
    """Listen to the Keras 2 in ``package``; its steps announce themselves to TensorFlow."""
    for hook in (_layers, _optimizers):
        watch.attempt(hook, package, watch, patches)


class _Calls(threading.local):
    """The layers that are being called on this thread: contexts, and whether their scope has been seen."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []
        self.seen: list[bool] = []


def _layers(package: str, watch: Watch, patches: Patches) -> None:
    """A layer's call enters a call context, opens its scope, and then enters the context of its precision."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    call = importlib.import_module(f"{package}.src.engine.base_layer_utils").CallContextManager
    precision = importlib.import_module(f"{package}.src.mixed_precision.autocast_variable")
    inside = precision.enable_auto_cast_variables
    calls, paths = _Calls(), LayerPaths()

    def path() -> str:
        layers = [one._state["layer"] for one in calls.contexts]
        return paths.path((layer.name, layer) for layer in layers)

    def entered(manager: Any) -> None:
        calls.contexts.append(manager)
        calls.seen.append(False)
        if watch.ranges.open and context.executing_eagerly():
            watch.ranges.enter(manager, LAYER + path())

    def left(manager: Any, *_: Any) -> None:
        watch.ranges.leave(manager)
        while calls.contexts and manager in calls.contexts:
            calls.contexts.pop()
            calls.seen.pop()

    def scope_opened(_: Any) -> None:
        if calls.contexts and not calls.seen[-1] and not context.executing_eagerly():
            calls.seen[-1] = True
            graph = ops.get_default_graph()
            watch.capture.opened(graph, graph.get_name_scope(), path())

    patches.put(call, "__enter__", after(call.__enter__, watch, entered))
    patches.put(call, "__exit__", after(call.__exit__, watch, left))
    patches.put(inside, "__enter__", after(inside.__enter__, watch, scope_opened))


def _optimizers(package: str, watch: Watch, patches: Patches) -> None:
    """The optimizer's part of an eager program."""
    from tensorflow.python.eager import context

    def begin(optimizer: Any, *_: Any, **__: Any) -> Any:
        if not watch.ranges.open or not context.executing_eagerly():
            return None
        watch.ranges.enter(optimizer, PHASE + "optimizer", LAYER + optimizer.name)
        return optimizer

    for module, name in (("optimizer", "_BaseOptimizer"), ("legacy.optimizer_v2", "OptimizerV2")):
        kind = getattr(importlib.import_module(f"{package}.src.optimizers.{module}"), name)
        ours = around(kind.apply_gradients, watch, begin, watch.ranges.leave)
        patches.put(kind, "apply_gradients", ours)
