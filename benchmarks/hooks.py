"""What hooks cost a program between sessions, in microseconds.

    python benchmarks/hooks.py                      PyTorch: a call of a module, and a step
    python benchmarks/hooks.py --framework jax      JAX: a call of a compiled function, and of an operation
    python benchmarks/hooks.py llama-decode --batch 8          in a program of studies/accuracy

Loops over next to nothing, with hooks and without them in turns, each compared with those beside it. Only
steps are recorded: no session is opened, and nothing is metered. Of every turn it is the quickest tenth that
counts, since other programs on the machine can only make it slower. A step of many arrays leaves nothing of
ours in the processor's caches, so that the same few lines take several times as long there. So in a program
it is hooks themselves that are timed, from their first line to their last: what they take is known to the
microsecond there, where whole steps vary by a tenth. (Calls of modules inside others run torch's own code.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from blocks import study_program
from switch import Switch

MODULES, ARRAYS, TIMES, TURNS = 200, 400, 300, 10
WARM_UP, STEPS = 50, 400


def cost_us(action: Callable[[], object], framework: str) -> float:
    """How much longer an action takes with hooks, in the middle of all turns."""
    with tempfile.TemporaryDirectory() as made:
        switch = Switch(framework, Path(made), overhead=0.0)
        longer = []
        for _ in range(TURNS):
            plain = _took_us(action)
            with switch.on():
                hooked = _took_us(action)
            longer.append(hooked - (plain + _took_us(action)) / 2)
        return median(longer)


def _took_us(action: Callable[[], object]) -> float:
    took_ns = []
    for _ in range(TIMES):
        begin_ns = time.thread_time_ns()
        action()
        took_ns.append(time.thread_time_ns() - begin_ns)
    return sorted(took_ns)[TIMES // 10] / 1e3


def modules(count: int) -> Callable[[], object]:
    """A call of a module with so many others inside, none of which does anything."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(count))).eval()
    given = torch.ones(1)

    def infers() -> object:
        with torch.no_grad():
            return model(given)

    return infers


def training() -> Callable[[], object]:
    """A step of training with one parameter."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.ones(1, 1)

    def step() -> None:
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()

    return step


def compiled(arrays: int) -> Callable[[], object]:
    """A call of a compiled function that is given so many arrays, and gives as many."""
    import jax

    @jax.jit  # type: ignore[untyped-decorator]
    def train_step(state: Any) -> Any:
        return [array + 1 for array in state]

    state = [jax.numpy.float32(number) for number in range(arrays)]

    def step() -> None:
        nonlocal state
        state = train_step(state)

    return step


def operation() -> Callable[[], object]:
    """An operation outside every compiled function."""
    import jax

    given = jax.numpy.float32(1)
    return lambda: given + given


def in_program(step: Callable[[], object]) -> dict[str, float]:
    """What PyTorch's hooks take of a program's steps."""
    taken_ns, whole_ns = [0], []
    each_ns: list[int] = []
    with _timed_hooks(taken_ns), tempfile.TemporaryDirectory() as made:
        switch = Switch("torch", Path(made), overhead=0.0)
        with switch.on():
            for number in range(WARM_UP + STEPS):
                taken_ns[0], begin_ns = 0, time.perf_counter_ns()
                step()
                if number >= WARM_UP:
                    whole_ns.append(time.perf_counter_ns() - begin_ns)
                    each_ns.append(taken_ns[0])
        assert switch.steps == WARM_UP + STEPS, f"{switch.steps} steps noticed of {WARM_UP + STEPS}"
        assert not switch.problems, switch.problems
    return {
        "a step": sum(whole_ns) / STEPS / 1e3,
        "hooks, the mean": sum(each_ns) / STEPS / 1e3,
        "hooks, the median": median(each_ns) / 1e3,
        "hooks, in 1,000 µs": 1e3 * sum(each_ns) / sum(whole_ns),
    }


@contextmanager
def _timed_hooks(taken_ns: list[int]) -> Iterator[None]:
    """Hooks that are put in meanwhile add what they take."""
    from torch.optim import optimizer

    from joulemap.frameworks.torch.calls import Calls

    now_ns = time.perf_counter_ns

    def timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def runs(*args: Any) -> Any:
            begin_ns = now_ns()
            result = hook(*args)
            taken_ns[0] += now_ns() - begin_ns
            return result

        return runs

    def timing(make: Callable[[Calls], Any]) -> Callable[[Calls], Any]:
        return lambda calls: timed(make(calls))

    before, after = "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"
    with ExitStack() as put_back:
        replaced = [(Calls, name, timing(getattr(Calls, name))) for name in ("_beginning", "_ending")]
        replaced += [(Calls, "_is_hidden", lambda _: False)]  # which counts frames; there is one thread
        replaced += [(Calls, "_noting", _timed_noting(Calls._noting, taken_ns))]
        for name in (before, after):
            replaced.append((optimizer, name, partial(_of_timed, getattr(optimizer, name), timed)))
        for owner, name, ours in replaced:
            put_back.enter_context(patch.object(owner, name, ours))
        yield


def _timed_noting(make: Callable[[Any], Any], taken_ns: list[int]) -> Callable[[Any], Any]:
    """What the function that calls modules does by itself, from its first word to the last but one that it
    asks, and from its end to its last, with a few lines of ours."""
    now_ns, since_ns = time.perf_counter_ns, [0]

    def noting(calls: Any) -> Any:
        parts = make(calls)
        now, note, profiled = parts["now"], parts["note"], parts["profiled"]

        def timed_now() -> int:
            since_ns[0] = now_ns()
            return int(now())

        def timed_note(span_ns: tuple[int, int]) -> None:
            note(span_ns)
            taken_ns[0] += now_ns() - since_ns[0]

        def timed_profiled() -> bool:
            taken_ns[0] += now_ns() - since_ns[0]
            return bool(profiled())

        return {**parts, "now": timed_now, "note": timed_note, "profiled": timed_profiled}

    return noting


def _of_timed(register: Callable[..., Any], timed: Callable[..., Any], hook: Callable[..., Any]) -> Any:
    return register(timed(hook))


def of_torch() -> dict[str, float]:
    """What each costs, in microseconds."""
    few, many = (cost_us(modules(count), "torch") for count in (1, 1 + MODULES))
    return {
        "a call inside a call": (many - few) / MODULES,
        "a step of inference": few,
        "a step of training": cost_us(training(), "torch"),
    }


def of_jax() -> dict[str, float]:
    """The same of JAX, where a step is a call."""
    return {
        "an operation": cost_us(operation(), "jax"),
        "a step of one array": cost_us(compiled(1), "jax"),
        f"a step of {ARRAYS} arrays": cost_us(compiled(ARRAYS), "jax"),
    }


def main() -> int:
    """Measure, and print."""
    found = {"torch": of_torch, "jax": of_jax}
    parser = argparse.ArgumentParser(description="What hooks cost between sessions.")
    parser.add_argument("--framework", choices=found, default="torch")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="of studies/accuracy/programs.py")
    args = parser.parse_args()
    costs = in_program(study_program(args.program)[0]) if args.program else found[args.framework]()
    for name, cost in costs.items():
        print(f"{name:24} {cost:8.3f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
