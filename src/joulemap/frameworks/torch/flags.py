"""The settings that choose between algorithms for one and the same operation: read where a program runs, set
where its operations are replayed.

Autocast is read but not set: what it casts to is in the signatures, since the operations below it are what is
recorded and replayed. Likewise an attention is recorded as the one of its backends that was chosen. Which
GPUs the program has is read beside them, since that decides as much, and cannot be set. How many threads of a
CPU share an operation is one of them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from typing import Any

from joulemap.frameworks.torch.gpus import all_in_use

_SETTINGS = (
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
)
_TF32 = {
    "cuda.matmul.fp32_precision": "cuda.matmul.allow_tf32",
    "cudnn.conv.fp32_precision": "cudnn.allow_tf32",
    "cudnn.rnn.fp32_precision": "cudnn.allow_tf32",
    "mkldnn.matmul.fp32_precision": "",
    "mkldnn.conv.fp32_precision": "",
    "mkldnn.rnn.fp32_precision": "",
}
"""And what says the same before torch 2.9. Where the new ones are known, the old ones are not asked for."""
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
DETERMINISTIC, AUTOCAST, GPUS, THREADS = "deterministic", "autocast", "gpus", "threads"


def current() -> dict[str, Any]:
    """What this program has set; what this torch does not know is absent."""
    import torch

    names = [new if _knows(new) else old for new, old in _TF32.items()]
    found = {name: _get(name) for name in dict.fromkeys((*_SETTINGS, *names)) if name and _knows(name)}
    for backend in _ATTENTION:
        with contextlib.suppress(AttributeError):
            found[f"cuda.{backend}_sdp"] = getattr(torch.backends.cuda, f"{backend}_sdp_enabled")()
    which = all_in_use()
    return {
        **found,
        DETERMINISTIC: torch.are_deterministic_algorithms_enabled(),
        THREADS: torch.get_num_threads(),
        **({GPUS: which} if which else {}),
    }


def autocast() -> dict[str, str]:
    """What is cast to, by the kind of device, where this thread does so now."""
    import torch

    try:
        kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    except TypeError:  # before torch 2.4
        return {}
    return {kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.") for kind in kinds}


def put(flags: Mapping[str, Any], device: str = "cpu") -> None:
    """Set them for operations on a kind of device; what another version of torch had and this one does not
    know is let be, as are the threads of a CPU whose operations are not meant."""
    import torch

    for name, value in flags.items():
        with contextlib.suppress(AttributeError):
            if name.endswith("_sdp"):
                getattr(torch.backends.cuda, f"enable_{name.partition('.')[2]}")(value)
            elif name == DETERMINISTIC:
                torch.use_deterministic_algorithms(value, warn_only=True)
            elif name == THREADS:
                if device == "cpu":
                    torch.set_num_threads(value)
            elif name not in (AUTOCAST, GPUS) and _knows(name):
                within, _, last = name.rpartition(".")
                setattr(operator.attrgetter(within)(torch.backends), last, value)


def _knows(name: str) -> bool:
    try:
        _get(name)
    except (AttributeError, RuntimeError):
        return False
    return True


def _get(name: str) -> Any:
    import torch

    return operator.attrgetter(name)(torch.backends)
