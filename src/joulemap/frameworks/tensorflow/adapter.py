"""TensorFlow and Keras, listened to while they run: steps, graphs, and profiler sessions on request."""

from __future__ import annotations

import sys
from pathlib import Path

from joulemap.frameworks.adapter import StepListener, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.tensorflow.capture import GraphCapture
from joulemap.frameworks.tensorflow.hooks import hook_tensorflow
from joulemap.frameworks.tensorflow.hooks_keras import hook_keras
from joulemap.frameworks.tensorflow.hooks_tf_keras import hook_tf_keras
from joulemap.frameworks.tensorflow.profiler import Profiler
from joulemap.frameworks.tensorflow.watch import Watch
from joulemap.frameworks.watch import call_in_children


class TensorFlowAdapter:
    """Hooks at the level of classes and modules; ``detach`` leaves these as they were."""

    name = "tensorflow"
    watches = ("tensorflow", "keras", "tf_keras")

    def __init__(self, folder: Path) -> None:
        self._capture = GraphCapture(folder / "graphs")
        self._watch = Watch(self._capture)
        self._patches = Patches()
        self._profiler: Profiler | None = None
        self._attached: set[str] = set()
        call_in_children(self._leave_to_parent)

    @property
    def problems(self) -> list[str]:
        """What could not be done, in sentences."""
        return self._watch.problems

    def attach(self, module: str, steps: StepListener) -> None:
        """Hook into ``module``, which the program has imported, once."""
        self._watch.steps = steps
        if module in self._attached:
            return
        self._attached.add(module)
        if module == "tensorflow":
            self._profiler = Profiler(self._watch, self._patches)
            hook_tensorflow(self._watch, self._patches)
        elif module == "keras" and _is_keras_3():
            if _runs_on_tensorflow():
                hook_keras(self._watch, self._patches)
        else:
            hook_tf_keras(module, self._watch, self._patches)

    def start(self, folder: Path) -> None:
        """Open a profiler session; ``TracerBusy`` where one is open."""
        if self._profiler is None:
            raise TracerBusy("TensorFlow is not attached.", "Import it first.")
        self._profiler.start(folder)

    def stop(self) -> None:
        """Close it, and write the graphs that are new; ``TracerBusy`` where the program ended it."""
        if self._profiler is None:
            raise TracerBusy("No session of TensorFlow's profiler is open.", "Start one first.")
        self._profiler.stop()
        self._watch.attempt(self._capture.write)

    def detach(self) -> None:
        """Take every hook out, end a session that is open, and write the graphs that are new."""
        if self._profiler is not None:
            self._watch.attempt(self._profiler.drop)
        self._watch.attempt(self._capture.write)
        self._watch.on = False
        self._patches.restore()

    def _leave_to_parent(self) -> None:
        """In a forked child hooks do nothing: the recording is its parent's."""
        self._watch.on = self._watch.ranges.open = False
        if self._profiler is not None:
            self._profiler.leave_to_parent()


def _is_keras_3() -> bool:
    return not str(sys.modules["keras"].__version__).startswith("2.")


def _runs_on_tensorflow() -> bool:
    """Keras 3 has other backends, which are none of ours."""
    return bool(sys.modules["keras"].config.backend() == "tensorflow")
