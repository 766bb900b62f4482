"""Why the operations of a recording cannot be replayed, where it does not say what they were called with."""

from __future__ import annotations

from joulemap.errors import InputError
from joulemap.recording import Recording
from joulemap.traces import KINDS

_NOT_REPLAYED = {
    "jax": "JAX has kernels only inside of the computations that it compiles as a whole",
    "tensorflow": "TensorFlow does not say what they were called with, and fuses them in its graphs",
}


def no_signatures(recording: Recording) -> InputError:
    """Another framework's program, or one that was not traced."""
    versions = recording.info.versions
    stays = f"Its energy stays shared by time: joulemap show {recording.path}"
    if "torch" in versions:
        return InputError(
            "The recording does not say what its operations were called with: none of its steps was traced.",
            "Record it anew with joulemap run or joulemap.record. With --overhead 0, --project or --isolate "
            "no step is traced.",
        )
    if not _NOT_REPLAYED.keys() & versions.keys():
        return InputError(
            "The program used no PyTorch, and only PyTorch's operations can be replayed.", stays
        )
    return InputError(
        f"Its operations cannot be replayed by themselves: {_NOT_REPLAYED[_framework(recording)]}.", stays
    )


def _framework(recording: Recording) -> str:
    """Whose operations they are. Keras imports JAX for TensorFlow's programs, and JAX's read their data with
    TensorFlow, which writes its operations like MatMul, and JAX like dot_general."""
    known = [name for name in _NOT_REPLAYED if name in recording.info.versions]
    if len(known) == 1:
        return known[0]
    events = recording.events()
    rows = events.kind.codes == KINDS.index("op")
    names = [name.lstrip("_") for name in events.op[rows]]
    return "tensorflow" if sum(name[:1].isupper() for name in names) > len(names) / 2 else "jax"
