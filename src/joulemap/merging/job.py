"""Whether recordings are the ranks of one job, and what of it they lack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from joulemap.errors import InputError
from joulemap.recording import Recording

_ONE_JOB = "Give the ranks of one job."


def rank_of(recording: Recording) -> int:
    """Which rank it is of."""
    return recording.info.rank or 0


def machine_of(recording: Recording) -> str:
    """The machine it was made on."""
    return str(recording.info.host.get("machine", ""))


def in_order(recordings: Sequence[Recording]) -> list[Recording]:
    """By rank; ``InputError`` where these are no ranks of one job."""
    unranked = [part for part in recordings if part.info.rank is None]
    if unranked:
        raise InputError(
            f"{unranked[0].path} is no part of a job: it has no rank.",
            "Ranks are recorded by joulemap run under torchrun, Slurm or mpirun.",
        )
    parts = sorted(recordings, key=rank_of)
    twice = [part for part, after in pairwise(parts) if rank_of(part) == rank_of(after)]
    if twice:
        raise InputError(f"Rank {rank_of(twice[0])} is there twice.", "Give each rank's recording once.")
    if len({part.info.world_size for part in parts}) > 1:
        raise InputError("These recordings are of jobs of different sizes.", _ONE_JOB)
    return parts


def missing(parts: Sequence[Recording]) -> list[str]:
    """Which ranks are not there."""
    gone = sorted(set(range(parts[0].info.world_size or 0)) - {rank_of(part) for part in parts})
    if not gone:
        return []
    words = ", ".join(map(str, gone))
    return [f"Ranks {words} are missing: what they drew stands under idle or other processes."]
