"""Which part of a job this process is, as its launcher says: torchrun, Slurm, Open MPI.

The meters of a machine are read once, by the first process on it; the others record what they do, and
``joulemap merge`` puts them together. So no joule is counted as often as there are processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from joulemap.recording.info import OF_ONE_RANK

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
_JOBS = {
    "RANK": ("TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    "SLURM_PROCID": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "OMPI_COMM_WORLD_RANK": ("PMIX_NAMESPACE",),
}
"""What is the same for all ranks of a job and mostly another for the next, by a launcher's word for rank."""
_NOTHING = ("", "none")
"""What torchrun calls a job that nobody named."""
_STARTED, _PARENT = 19, 1
"""Where a process's stat has these, counted from behind its name."""

_STARTS_RANKS = ("torch.distributed.run", "torch.distributed.launch", "torchrun", "accelerate", "deepspeed")


def launcher_notes(arguments: Sequence[str]) -> list[str]:
    """What to tell where a launcher is recorded in the place of what it launches: ``python ARGUMENTS…``."""
    program = next((word for word in arguments if word != "-m"), "")
    if program not in _STARTS_RANKS and Path(program).name not in _STARTS_RANKS:
        return []
    return [
        f"{Path(program).name} starts the processes of a job: they are metered all together, and not traced. "
        "To trace them, let it start joulemap, as in torchrun --no-python joulemap run SCRIPT, and merge."
    ]


@dataclass(frozen=True)
class Rank:
    """One process of a job of several."""

    rank: int
    world_size: int
    local_rank: int
    job: Mapping[str, str] = field(default_factory=dict)
    """What the launcher says of the job."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Rank | None:
        """As the first launcher says that is known; None for a program that is one process."""
        for names in _LAUNCHERS:
            values = [environment.get(name, "") for name in names]
            if all(value.isdigit() for value in values) and int(values[1]) > 1:
                said = {name: environment.get(name, "") for name in _JOBS[names[0]]}
                job = {name: value for name, value in said.items() if value not in _NOTHING}
                return cls(int(values[0]), int(values[1]), int(values[2]), job)
        return None

    @property
    def meters(self) -> bool:
        """Whether this process has its machine metered, for all that run there."""
        return self.local_rank == 0

    def path(self, path: Path) -> Path:
        """A recording's name for this rank: ``run-rank3.joulemap``."""
        return path.with_name(f"{path.stem}-rank{self.rank}{path.suffix}")

    def pattern(self, path: Path) -> Path:
        """All ranks' recordings, for a shell, from this one's name."""
        return path.with_name(path.name.replace(f"-rank{self.rank}", "-rank*"))

    def whole(self, path: Path) -> Path:
        """The whole job's, from this rank's name."""
        return path.with_name(path.name.replace(f"-rank{self.rank}", ""))

    def merge_command(self, path: Path) -> str:
        """What puts the ranks together, from this one's name."""
        return f"joulemap merge {self.pattern(path)} -o {self.whole(path)}"

    def note(self, path: Path) -> str:
        """What whoever looks at this rank's recording alone must know of its energy."""
        whose = (
            "its meters stand for all ranks of its machine"
            if self.meters
            else "its machine is metered in the recording of another rank"
        )
        which = f"{OF_ONE_RANK}{self.rank} of {self.world_size}"
        return f"{which} alone: {whose}. Put them together: {self.merge_command(path)}"


@dataclass(frozen=True)
class Launcher:
    """What has started a job's processes on this machine, and when, in epoch seconds: the same for all of
    them. Where the system does not say, it is this process's parent, and now."""

    pid: int
    began_s: float

    @classmethod
    def of(cls, proc: Path = Path("/proc"), pid: int | None = None) -> Launcher:
        parent = os.getppid() if pid is None else pid
        with suppress(OSError, ValueError, IndexError):
            found = _no_rank(proc, parent)
            lines = (line.split() for line in (proc / "stat").read_text().splitlines())
            [boot_s] = [int(words[1]) for words in lines if words[:1] == ["btime"]]
            return cls(found, boot_s + int(_stat(proc, found)[_STARTED]) / os.sysconf("SC_CLK_TCK"))
        return cls(parent, time.time())

    def __str__(self) -> str:
        return f"{self.pid} since {self.began_s:.2f}"


def _no_rank(proc: Path, pid: int) -> int:
    """The first process from here upwards that is no rank itself: a rank may be a script around joulemap."""
    words = tuple(f"{names[2]}=".encode() for names in _LAUNCHERS)
    while pid > 1:
        try:
            said = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, such as Slurm's
            return pid
        if not any(one.startswith(words) for one in said):
            return pid
        pid = int(_stat(proc, pid)[_PARENT])
    return pid


def _stat(proc: Path, pid: int) -> list[str]:
    """What the system says of a process after its name, which may hold anything."""
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
