"""Which part of a job this process is, as its launcher says: torchrun, Slurm, Open MPI.

The meters of a machine are read once, by the first process on it; the others record what they do, and
``joulemap merge`` puts them together. So no joule is counted as often as there are processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


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

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Rank | None:
        """As the first launcher says that is known; None for a program that is one process."""
        for names in _LAUNCHERS:
            values = [environment.get(name, "") for name in names]
            if all(value.isdigit() for value in values) and int(values[1]) > 1:
                return cls(*map(int, values))
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
