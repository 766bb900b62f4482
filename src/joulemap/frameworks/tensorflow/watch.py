"""What TensorFlow's hooks share beside what all hooks do: the graphs they saw, the ranges they open."""

from __future__ import annotations

from joulemap.frameworks import watch
from joulemap.frameworks.tensorflow.capture import GraphCapture
from joulemap.frameworks.tensorflow.ranges import Ranges


class Watch(watch.Watch):
    """A watch that captures graphs, and names what runs eagerly by ranges."""

    def __init__(self, capture: GraphCapture) -> None:
        super().__init__("TensorFlow")
        self.capture = capture
        self.ranges = Ranges()
