"""TensorFlow and Keras, listened to while they run: steps, graphs, and profiler sessions on request."""

from __future__ import annotations

import sys
from pathlib import Path

from joulemap.frameworks.hooked import HookedAdapter
from joulemap.frameworks.tensorflow.capture import GraphCapture
from joulemap.frameworks.tensorflow.hooks import hook_tensorflow
from joulemap.frameworks.tensorflow.hooks_keras import hook_keras
from joulemap.frameworks.tensorflow.hooks_tf_keras import hook_tf_keras
from joulemap.frameworks.tensorflow.profiler import Profiler
from joulemap.frameworks.tensorflow.watch import Watch


class TensorFlowAdapter(HookedAdapter):
    """Functions, graphs, and the models of Keras 2 and 3."""

    name = "tensorflow"
    watches = ("tensorflow", "keras", "tf_keras")
    _watch: Watch

    def __init__(self, folder: Path) -> None:
        self._capture = GraphCapture(folder / "graphs")
        super().__init__(Watch(self._capture))

    def detach(self) -> None:
        """Take every hook out, end a session that is open, and write the graphs that are new."""
        self._watch.attempt(self._capture.write)
        super().detach()

    def _hook(self, module: str) -> None:
        if module == "tensorflow":
            self._profiler = Profiler(self._watch, self._patches)
            hook_tensorflow(self._watch, self._patches)
        elif module == "keras" and _is_keras_3():
            if _runs_on_tensorflow():
                hook_keras(self._watch, self._patches)
        else:
            hook_tf_keras(module, self._watch, self._patches)

    def _write(self) -> None:
        self._capture.write()

    def _leave_to_parent(self) -> None:
        self._watch.ranges.open = False
        super()._leave_to_parent()


def _is_keras_3() -> bool:
    return not str(sys.modules["keras"].__version__).startswith("2.")


def _runs_on_tensorflow() -> bool:
    """Keras 3 has other backends, which are none of ours."""
    return bool(sys.modules["keras"].config.backend() == "tensorflow")
