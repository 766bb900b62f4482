"""NVIDIA's and AMD's GPUs, as far as the program uses them."""

from __future__ import annotations


def in_use() -> bool:
    """Whether the program has used any."""
    import torch

    return bool(torch.cuda.is_initialized())


def wait() -> None:
    """Until those that the program uses have done what they were given; the others are not even woken."""
    import torch

    for number in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(number):
            torch.cuda.synchronize(number)


def captures() -> bool:
    """Whether a CUDA graph is being captured on this stream: then nothing runs, nor may be waited for."""
    import torch

    return in_use() and bool(torch.cuda.is_current_stream_capturing())
