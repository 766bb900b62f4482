"""Waiting until accelerators have done what they were asked for."""

from __future__ import annotations

import sys
from typing import Any


def fence() -> None:
    """Synchronise every device that the program uses, with whichever frameworks it has imported."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        _wait_for_torch(torch)
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "effects_barrier"):
        _wait_for_jax(jax)
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None and context.context()._context_handle is not None:
        context.async_wait()
        _wait_for_tensorflow(context)


def _wait_for_torch(torch: Any) -> None:
    """While a CUDA graph is captured nothing runs, and waiting would break it off."""
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def _wait_for_jax(jax: Any) -> None:
    for array in jax.live_arrays():
        array.block_until_ready()
    jax.effects_barrier()


def _wait_for_tensorflow(context: Any) -> None:
    """Each GPU's stream is done when a copy from it is."""
    tensorflow = sys.modules["tensorflow"]
    if hasattr(tensorflow, "test") and context.num_gpus():
        tensorflow.test.experimental.sync_devices()
