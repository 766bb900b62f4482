"""Hooks into TensorFlow itself: functions, sessions, gradients, and steps that the program annotates.

Where TensorFlow enters a context manager of its own, the hook is in there: it leaves no frame on the stack,
and nothing in a traceback.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.tensorflow.ranges import PHASE
from joulemap.frameworks.tensorflow.watch import Watch
from joulemap.frameworks.tensorflow.wrapped import after, around

STEP_NAMES = {
    "train_function": "train",
    "test_function": "test",
    "predict_function": "predict",
    "one_step_on_data_distributed": "predict",
    "multi_step_on_data": "predict",
}
"""What Keras calls the functions that it makes of a step, where another name says more."""


def hook_tensorflow(watch: Watch, patches: Patches) -> None:
    """Listen to everything that TensorFlow itself runs."""
    from tensorflow.python.profiler.internal import _pywrap_traceme

    watch.ranges.make = _pywrap_traceme.TraceMe
    for hook in (_graphs, _functions, _concrete_functions, _annotations, _sessions, _gradients):
        watch.attempt(hook, watch, patches)


def _graphs(watch: Watch, patches: Patches) -> None:
    """Every graph that becomes a function: a ``tf.function``, a loop, a branch, a map of ``tf.data``."""
    from tensorflow.python.eager.polymorphic_function import atomic_function

    def made(name: str | bytes, graph: Any, *_: Any, **__: Any) -> None:
        watch.capture.made(graph, graph.name, name.decode() if isinstance(name, bytes) else name)
        watch.steps.compiled()

    patches.put(atomic_function, "from_func_graph", after(atomic_function.from_func_graph, watch, made))


def _functions(watch: Watch, patches: Patches) -> None:
    """Calls of a ``tf.function``, each of which enters a ``Trace`` with the function's name."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.profiler import trace

    def begin(label: str) -> bool | None:
        if not context.executing_eagerly():
            return None
        watch.steps.begin(STEP_NAMES.get(label, label))
        return True

    make, leave = trace.Trace.__init__, trace.Trace.__exit__

    class FunctionTrace(trace.Trace):  # type: ignore[misc] # a class of TensorFlow's
        """A call, announced as a step where no other function is being traced."""

        def __init__(self, name: str, **kwargs: Any) -> None:
            make(self, name, **kwargs)
            self._function = name

        def __enter__(self) -> Any:
            self._announced = watch.attempt(begin, self._function)
            return self

        def __exit__(self, *error: Any) -> None:
            leave(self, *error)
            if self._announced:
                watch.surely(watch.steps.end)

    patches.put(polymorphic_function, "trace", SimpleNamespace(**{**vars(trace), "Trace": FunctionTrace}))


def _concrete_functions(watch: Watch, patches: Patches) -> None:
    """Calls of one traced function by itself, such as a saved model's signature."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    def begin(function: Any, /, *_: Any, **__: Any) -> bool | None:
        if not context.executing_eagerly():
            return None
        watch.steps.begin(function.graph.name)
        return True

    call = around(ConcreteFunction.__call__, watch, begin, _end_step(watch))
    patches.put(ConcreteFunction, "__call__", call)


def _annotations(watch: Watch, patches: Patches) -> None:
    """Steps that a program or tf_keras marks for the profiler: ``Trace("train", step_num=i, _r=1)``."""
    from tensorflow.python.profiler.trace import Trace

    make, enter, leave = Trace.__init__, Trace.__enter__, Trace.__exit__

    def made(trace: Any, name: str, **kwargs: Any) -> None:
        make(trace, name, **kwargs)
        if "_r" in kwargs or "step_num" in kwargs:
            trace._step = name

    def entered(trace: Any) -> Any:
        if "_step" in vars(trace):
            watch.attempt(watch.steps.begin, trace._step)
        return enter(trace)

    def left(trace: Any, *error: Any) -> None:
        leave(trace, *error)
        if "_step" in vars(trace):
            watch.surely(watch.steps.end)

    for original, ours in ((make, made), (enter, entered), (leave, left)):
        patches.put(Trace, original.__name__, functools.wraps(original)(ours))


def _sessions(watch: Watch, patches: Patches) -> None:
    """``Session.run`` of ``tf.compat.v1``, whoever calls it; what a session runs first, it compiles."""
    import weakref

    from tensorflow.python.client.session import BaseSession

    seen: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()

    def begin(session: Any, /, fetches: Any, *_: Any, **__: Any) -> bool:
        watch.steps.begin("session.run")
        watch.attempt(compiles, session, fetches)
        return True

    def compiles(session: Any, fetches: Any) -> None:
        watch.capture.made(session.graph, "session")
        key = (session.graph.version, _fetched(fetches))
        if key not in seen.setdefault(session, set()):
            seen[session].add(key)
            watch.steps.compiled()

    patches.put(BaseSession, "run", around(BaseSession.run, watch, begin, _end_step(watch)))


def _fetched(fetches: Any) -> Any:
    """What a run asks for, as something to compare."""
    if isinstance(fetches, dict):
        return tuple(_fetched(one) for one in fetches.values())
    if isinstance(fetches, list | tuple):
        return tuple(_fetched(one) for one in fetches)
    return fetches if isinstance(fetches, str) else getattr(fetches, "name", type(fetches).__name__)


def _gradients(watch: Watch, patches: Patches) -> None:
    """The backward pass of an eager program, whose ops do not say that they belong to it."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.backprop import GradientTape

    def begin(tape: Any, /, *_: Any, **__: Any) -> Any:
        if not watch.ranges.open or not context.executing_eagerly():
            return None
        watch.ranges.enter(tape, PHASE + "backward")
        return tape

    patches.put(GradientTape, "gradient", around(GradientTape.gradient, watch, begin, watch.ranges.leave))


def _end_step(watch: Watch) -> Any:
    def end(_: bool) -> None:
        watch.steps.end()

    return end
