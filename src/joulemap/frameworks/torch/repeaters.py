"""All who execute the targets of an experiment again, each in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulemap.frameworks.torch.again import Thread
from joulemap.frameworks.torch.caches import Operands
from joulemap.frameworks.torch.launched import PREFIX
from joulemap.frameworks.torch.repeating import Repeater
from joulemap.frameworks.torch.repeating_generated import GeneratedRepeater, Kernel
from joulemap.frameworks.torch.repeating_modules import ModuleRepeater


def repeaters(said: Mapping[str, Any]) -> list[Repeater | GeneratedRepeater | ModuleRepeater]:
    """For the targets as ``joulemap validate`` says them (``Target.to_json``). One operation may be executed
    in graphs of ``torch.compile`` and outside of them."""
    device, each_s = said["device"], {one["target"]: one["each_s"] for one in said["operations"]}
    operations: dict[str, dict[Operands, int]] = {}
    kernels: dict[Kernel, int] = {}
    cold: dict[Any, str] = {}
    for one in said["operations"]:
        for tensors, files, letters in zip(one["operands"], one["files"], one["cold"], strict=True):
            for what in _keys(one["op"], tensors, files):
                cold[what] = letters
                if one["op"].startswith(PREFIX):
                    kernels[what] = one["target"]
                else:
                    operations.setdefault(one["op"], {})[what[1]] = one["target"]
    modules = {one["name"]: one["target"] for one in said["modules"]}
    thread = Thread()
    found: list[Repeater | GeneratedRepeater | ModuleRepeater] = [
        Repeater(device, operations, each_s, cold, thread),
        ModuleRepeater(modules, thread),
    ]
    return [*found, GeneratedRepeater(device, kernels, operations, each_s, cold, thread)]


def _keys(op: str, tensors: Any, files: Any) -> list[Any]:
    """What a call of an operation is known by: its operands, or the files of a generated kernel."""
    if op.startswith(PREFIX):
        return [(op, file) for file in files]
    return [(op, tuple((tuple(shape), word) for shape, word in tensors))]
