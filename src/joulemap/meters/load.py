"""Work in bursts of many lengths, for a sensor to see while it is characterised.

The work is done by a process of its own: it must not hold up the reading, and a GPU needs a framework that
joulemap itself never imports.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

_QUIET_NS = 10 * NS_PER_S


def bursts(start_ns: ArrayLike, end_ns: ArrayLike) -> PowerTrace:
    """A load that worked from each start to each end, as 1 W, with quiet before and after."""
    times = np.stack((np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)), axis=1).ravel()
    edges = np.concatenate(([times[0] - _QUIET_NS], times, [times[-1] + _QUIET_NS]))
    working = np.arange(len(edges) - 1) % 2 == 1
    return PowerTrace(Domain("load", "CPU"), edges, np.where(working, np.diff(edges) / NS_PER_S, 0.0))


def cpu_bursts(seconds: float) -> PowerTrace:
    """Spin on every CPU."""
    return _worked(_CPU, seconds)


def gpu_bursts(index: int) -> Callable[[float], PowerTrace]:
    """A load that multiplies matrices on the GPU that a program sees as this number, with whichever of
    PyTorch, CuPy and JAX can; ``MeterError`` where none can."""
    return functools.partial(_worked, _GPU.replace("INDEX", str(index)))


def _worked(work: str, seconds: float) -> PowerTrace:
    """Run the bursts; the process prints when each really began and ended."""
    process = subprocess.run(
        [sys.executable, "-c", work + _BURSTS, str(seconds)], capture_output=True, text=True, check=False
    )
    if process.returncode == _NO_FRAMEWORK:
        raise MeterError(f"Nothing here can load the GPU ({process.stderr.strip()}).", _INSTALL)
    marks = np.array(process.stdout.split() if process.returncode == 0 else [], np.int64).reshape(-1, 2)
    if not len(marks):
        said = process.stderr.strip().splitlines() or ["there was no time for it"]
        raise MeterError(f"The load could not run: {said[-1]}.")
    return bursts(marks[:, 0], marks[:, 1])


_NO_FRAMEWORK = 69
_INSTALL = "Install PyTorch, CuPy or JAX with support for this GPU where joulemap runs."

_CPU = """
import os
speaks = True
for _ in range(len(os.sched_getaffinity(0)) - 1):
    if os.fork() == 0:
        speaks = False
        break

def work():
    for _ in range(10_000):
        pass
"""

_GPU = f"""
import importlib, os, sys
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
speaks = True

def with_torch(torch):
    a = torch.randn(4096, 4096, device="cuda:INDEX", dtype=torch.bfloat16)
    def work():
        a @ a
        torch.cuda.synchronize(INDEX)
    return work

def with_cupy(cupy):
    cupy.cuda.Device(INDEX).use()
    a = cupy.ones((4096, 4096), cupy.float16)
    def work():
        a @ a
        cupy.cuda.Stream.null.synchronize()
    return work

def with_jax(jax):
    a = jax.device_put(jax.numpy.ones((4096, 4096), "bfloat16"), jax.devices("gpu")[INDEX])
    multiply = jax.jit(lambda a: a @ a)
    return lambda: multiply(a).block_until_ready()

work, problems = None, []
for name, make in (("torch", with_torch), ("cupy", with_cupy), ("jax", with_jax)):
    try:
        work = make(importlib.import_module(name))
        work()
        break
    except Exception as error:
        work = None
        problems.append(name + ": " + (str(error).splitlines() or [type(error).__name__])[0])
if work is None:
    print("; ".join(problems), file=sys.stderr)
    sys.exit({_NO_FRAMEWORK})
"""

_BURSTS = """
import random, sys, time
random.seed(0)
quiet_ns, end_ns = 300_000_000, time.time_ns() + int(float(sys.argv[1]) * 1e9)
t_ns, marks = time.time_ns() + quiet_ns, []
while t_ns + quiet_ns < end_ns:
    time.sleep(max(t_ns - time.time_ns(), 0) / 1e9)
    on_ns, off_ns = (int(random.choice((5, 20, 50, 120, 300, 700)) * 1e6) for _ in range(2))
    begun_ns = time.time_ns()
    while time.time_ns() < t_ns + on_ns:
        work()
    marks.append((begun_ns, max(time.time_ns(), begun_ns)))
    t_ns = max(t_ns + on_ns + off_ns, marks[-1][1])
time.sleep(max(end_ns - time.time_ns(), 0) / 1e9)
if speaks:
    for mark in marks:
        print(*mark)
"""
