"""The door through which joulemap enters a program: Python imports this before it runs the program.

``joulemap run`` puts this folder in front of ``PYTHONPATH``, so the program itself is run by Python, not by
us: its ``__main__``, arguments, tracebacks and exit code are the real ones. Everything that was changed to
get here is put back first, so that neither the program nor its children see it.
"""

import os
import sys


def _step_aside() -> None:
    """Take this folder out of path and environment, and let the real ``sitecustomize`` have its turn."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not loaded yet
    if here in sys.path:
        sys.path.remove(here)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)[1:]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
    ourselves = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ourselves is not None:
            sys.modules.setdefault("sitecustomize", ourselves)  # Python is about to look for one


def _enter(handle: str) -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    if "joulemap" not in sys.modules:
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")  # noqa: PTH100, PTH118, PTH120
        spec = PathFinder.find_spec("joulemap", [os.path.normpath(root)])
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - we are in it
        sys.modules["joulemap"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["joulemap"])
    from joulemap.recorder.inside import enter

    enter(int(handle))


_handle = os.environ.pop("JOULEMAP_HANDLE", None)
_step_aside()
try:
    if _handle is not None:
        _enter(_handle)
except Exception:  # noqa: BLE001, S110 - the program runs, recorded or not; that nothing came is noted outside
    pass
