"""The frameworks that can be listened to while they run, each imported when the program has imported it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from joulemap.frameworks.adapter import Adapter


@dataclass(frozen=True)
class Framework:
    """How to recognise a framework: ``name`` is the module that it is, ``watches`` are all that matter."""

    name: str
    watches: tuple[str, ...]
    home: str
    class_name: str

    def adapter(self, folder: Path) -> Adapter:
        """Its adapter, in the program's process; raw traces go below ``folder``."""
        made: Adapter = getattr(importlib.import_module(self.home), self.class_name)(folder)
        return made


FRAMEWORKS = (
    Framework(
        "tensorflow",
        ("tensorflow", "keras", "tf_keras"),
        "joulemap.frameworks.tensorflow.adapter",
        "TensorFlowAdapter",
    ),
    Framework(
        "torch",
        ("torch", "torch.utils.data.dataloader", "torch._dynamo", "torch._inductor.compile_fx"),
        "joulemap.frameworks.torch.adapter",
        "TorchAdapter",
    ),
    Framework("jax", ("jax", "flax.nnx"), "joulemap.frameworks.jax.adapter", "JaxAdapter"),
)
