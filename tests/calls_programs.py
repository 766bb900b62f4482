"""Programs that call a small library of their own, run plainly and under ``joulemap run --calls``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from joulemap.calls.table import Calls
from joulemap.recording import Recording

from .test_run import plainly, program

LIBRARY = """
    import logging, sys, warnings

    def add(a, b=0): return a + b
    def raises(error): raise error
    def warns(level): warnings.warn("careful", stacklevel=level)
    def caller(): return sys._getframe(1).f_globals["__name__"], sys._getframe(1).f_globals["__file__"]
    def counted(n): yield from range(n)
    async def later(x): return x
    def log(): logging.getLogger().warning("said", stacklevel=2)
    def locals_of_caller(): return sorted(sys._getframe(1).f_locals)
    def place(): return place_of(sys._getframe)
    def place_of(get): frame = get(2); return frame.f_code.co_name, frame.f_lineno, frame.f_code.co_filename
    def apply(function, *args): return function(*args)
    def deeply(n, function, *args): return deeply(n - 1, function, *args) if n else function(*args)
    def sleep(seconds): import time; time.sleep(seconds)
    def decorate(text):
        def decorator(function): function.text = text; return function
        return decorator

    class Thing:
        def __init__(self, name="thing"): self.name = name
        def same(self, *args, **kwargs): return self
        def raises(self): return raises(ValueError(self.name))
        def warns(self, level): return warnings.warn(self.name, stacklevel=level)
        def __call__(self, x): return x * 2
        def __enter__(self): return self
        def __exit__(self, *error): return False

    class Array:
        def __init__(self, shape): self.shape, self.dtype, self.nbytes = shape, "float32", 4 * shape[0]
        shape = dtype = nbytes = None
        def sum(self): return 0
"""


WAYS = """
    import asyncio, doctest, functools, inspect, pickle, threading
    import fakelib
    from fakelib import *
    from fakelib import add as plus
    Alias = fakelib.Thing

    class Mine(fakelib.Thing):
        def __init__(self):
            super().__init__("mine")
        def own(self): return 1
    class Overridden(fakelib.Thing):
        def __call__(self, x): return -x

    def given(function, thing): return function(1), thing.same()
    def shadowed(add): return add(5)
    def documented():
        '''
        >>> documented()
        3
        '''
        return fakelib.add(1, 2)
    async def main():
        return await fakelib.later(fakelib.add(1)) + sum(await asyncio.gather(one(1), one(2)))
    async def one(x): return fakelib.apply(plus, await fakelib.later(x))

    print(given(plus, Alias())[0], shadowed(lambda x: x), shadowed(plus), getattr(fakelib, "add")(1))
    m = Mine()
    print(m(3), m.own(), m.same().name, Overridden()(3), functools.partial(plus, 1)(2))
    print(asyncio.run(main()), list(fakelib.counted(2)))
    print(inspect.getsource(documented), inspect.signature(given), doctest.testmod())
    print(pickle.loads(pickle.dumps(m)).name, pickle.loads(pickle.dumps(documented)) is documented)
    threads = [threading.Thread(target=lambda: plus(1)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    @fakelib.decorate("text")
    def decorated(default=plus(1, 1)): return default
    print(decorated.text, decorated(), fakelib.apply(lambda: plus(1)))
"""
"""Every way to reach the library that we could think of."""


def project_in(folder: Path) -> Path:
    """A folder with the library in it."""
    program(folder, LIBRARY, "fakelib.py")
    return folder


def metered(folder: Path, *arguments: str | Path, calls: str = "fakelib", **options: Any):
    """Run it under ``joulemap run --calls``."""
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", "--overwrite"]
    return subprocess.run(
        [*command, "--calls", calls, *map(str, arguments)],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 300, **options},
    )


def same(folder: Path, *arguments: str | Path, calls: str = "fakelib", **options: Any) -> Calls:
    """Run it both ways: output, errors and exit code must not differ. The calls are what was recorded."""
    plain, ours = plainly(folder, *arguments, **options), metered(folder, *arguments, calls=calls, **options)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return recorded_calls(folder)


def recorded_calls(folder: Path) -> Calls:
    recording = Recording.open(folder / "r.joulemap")
    assert not [one for one in recording.info.warnings if "call" in one.lower() and "ended" not in one]
    calls = recording.calls()
    assert calls is not None
    return calls


def texts(calls: Calls) -> list[str]:
    """The source of what was called, call by call."""
    return list(calls.sites.text[calls.sites.rows(calls.site)])
