"""NVIDIA's and AMD's GPUs, as far as the program uses them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def in_use() -> bool:
    """Whether the program has used any."""
    import torch

    return bool(torch.cuda.is_initialized())


def to_come() -> bool:
    """Whether the program may still come to use one: this torch could, and the machine has one."""
    import torch

    built = torch.version.cuda is not None or torch.version.hip is not None
    return built and not in_use() and any(Path(device).exists() for device in _DEVICES)


def wait() -> None:
    """Until those that the program uses have done what they were given; the others are not even woken."""
    import torch

    for number in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(number):
            torch.cuda.synchronize(number)


def which(device: Any) -> str:
    """The very GPU that a device is, by model and number, since ``cuda:0`` may be another one tomorrow;
    nothing for a CPU."""
    import torch

    if device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} {getattr(found, 'uuid', '')}".strip()


def all_in_use() -> dict[str, str]:
    """Which they are, by device, where the program has used any."""
    import torch

    every = range(torch.cuda.device_count()) if in_use() else ()
    return {f"cuda:{number}": which(torch.device("cuda", number)) for number in every}


def captures() -> bool:
    """Whether a CUDA graph is being captured on this stream: then nothing runs, nor may be waited for."""
    cuda = sys.modules["torch"].cuda
    return cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def keeps_graphs() -> bool:
    """Whether inductor keeps CUDA graphs for what this thread calls: before it captures one it tries that out
    in memory that is the graph's, where nobody else may keep anything."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    try:
        known = trees.get_obj(trees.local, "tree_manager_containers").values()
        return any(one.tree_manager is not None for one in known)
    except (AttributeError, RuntimeError, AssertionError):  # inductor is other than we know it
        return True  # before 2.13 it asserts that it has been asked in this thread before


def quick_captures() -> Callable[[], bool]:
    """The same in one call of C, for as long as the program uses the GPUs that it does now, or none."""
    torch = sys.modules["torch"]
    capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if in_use() else bool
    return capturing
