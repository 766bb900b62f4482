"""What the profiler leaves behind on a GPU: NVIDIA's tracer stays attached, and every launch is slower.

Kineto takes it out after a session if the environment says ``TEARDOWN_CUPTI=1`` when the session ends; the
next one puts it in again. It happens at the program's next call of CUDA, on a thread that looks once more at
the environment. So the variable is there from the start of a session until a step after it, in the
environment of the process only (not in ``os.environ``): only a child that is started in between sees it.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.aside import unseen
from joulemap.frameworks.watch import Watch

_TEARDOWN = "TEARDOWN_CUPTI"
_GRAPHS = (
    "The program uses CUDA graphs: NVIDIA's tracer cannot be taken out after a session then, and launches "
    "may be slower from the first session on. --overhead 0 meters without tracing."
)


class Residue:
    """Has it removed, unless the program decides by itself or has captured CUDA graphs: these and a tracer
    that comes back crash, as torch says of its own."""

    def __init__(self, watch: Watch, patches: Patches) -> None:
        import torch

        self._watch = watch
        self._set = self._captured = False
        if torch.version.cuda is not None:
            self._watch_captures(torch.cuda.CUDAGraph, patches)

    def _watch_captures(self, graph: Any, patches: Patches) -> None:
        original = graph.capture_begin

        @functools.wraps(original)
        def captures(*args: Any, **kwargs: Any) -> Any:
            self._captured = True
            return original(*args, **kwargs)

        patches.put(graph, "capture_begin", unseen(captures))

    def session_begins(self) -> None:
        """Before the profiler is started."""
        if self._captured:
            self.clear()
            self._watch.note(_GRAPHS)
        elif _TEARDOWN not in os.environ and not self._set:
            os.putenv(_TEARDOWN, "1")
            self._set = True

    def session_ended(self) -> None:
        """After it was stopped: a call of CUDA, which removes the tracer as it returns."""
        if self._set:
            gpus.wait()

    def step_ended(self) -> None:
        """A step after it: it is gone for sure."""
        if self._set:
            self.clear()

    def clear(self) -> None:
        """The environment is as it was."""
        if self._set:
            self._set = False
            if _TEARDOWN not in os.environ:
                os.unsetenv(_TEARDOWN)
