"""Whether recordings are the ranks of one job, and what of it they lack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from joulemap.errors import InputError
from joulemap.recording import Recording
from joulemap.recording.info import LAUNCHER
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S, fmt_seconds

_NOTABLE_S = 0.1
_STAGGERED_S = 60.0
"""A launcher may start short programs one after the other."""
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
    for first, second in combinations(parts, 2):
        _check_same_job(first, second)
    return parts


def _check_same_job(first: Recording, second: Recording) -> None:
    """What their launchers say of the job agrees, as far as both say it. Numbers of jobs and ports are used
    again: there must also have been a time when both ran, or about that where one process started them."""
    one, other = first.info.job, second.info.job
    odd = next(
        (name for name in one if name in other and name != LAUNCHER and one[name] != other[name]), None
    )
    if odd is not None:
        raise InputError(
            f"{first.path} and {second.path} are of different jobs: {odd} was {one[odd]} and {other[odd]}.",
            _ONE_JOB,
        )
    together = LAUNCHER in one and one[LAUNCHER] == other.get(LAUNCHER)
    apart_s = _apart_s(first, second)
    if apart_s > (_STAGGERED_S if together and machine_of(first) == machine_of(second) else 0.0):
        raise InputError(
            f"{first.path} and {second.path} are of different jobs: one had ended {fmt_seconds(apart_s)} "
            "before the other began.",
            f"{_ONE_JOB} Those of several machines need clocks that agree.",
        )


def _apart_s(first: Recording, second: Recording) -> float:
    """How long before one began the other had ended; 0 where that is not known."""
    lives = [life for life in (_life_ns(first), _life_ns(second)) if life is not None]
    return 0.0 if len(lives) < 2 else (max(map(min, lives)) - min(map(max, lives))) / NS_PER_S


def _life_ns(recording: Recording) -> tuple[int, int] | None:
    """From when joulemap began to record it until the program ended."""
    window, created_ns = recording.info.window_ns, recording.info.created_ns
    return None if window is None else (min(created_ns, window[0]), window[1])


def missing(parts: Sequence[Recording]) -> list[str]:
    """Which ranks are not there."""
    gone = sorted(set(range(parts[0].info.world_size or 0)) - {rank_of(part) for part in parts})
    if not gone:
        return []
    words = ", ".join(map(str, gone))
    which, they = (f"Rank {words} is", "it") if len(gone) == 1 else (f"Ranks {words} are", "they")
    return [f"{which} missing: what {they} drew stands under idle or other processes."]


def unmetered(parts: Sequence[Recording]) -> list[str]:
    """For how long each rank ran while its machine was not metered: before the first rank there had its
    meters read, and after that had ended."""
    power: dict[str, list[PowerTrace]] = {}
    for part in parts:
        power.setdefault(machine_of(part), []).extend(trace for trace in part.power() if len(trace))
    said = (_unmetered(part, power[machine_of(part)]) for part in parts)
    return [note for note in said if note]


def _unmetered(part: Recording, power: Sequence[PowerTrace]) -> str:
    window = part.info.window_ns
    if window is None:
        return ""
    whole = fmt_seconds((window[1] - window[0]) / NS_PER_S)
    if not power:
        return f"Nothing was metered of rank {rank_of(part)}, which ran for {whole}."
    first_ns, last_ns = (
        min(int(one.edges_ns[0]) for one in power),
        max(int(one.edges_ns[-1]) for one in power),
    )
    lacks_ns = {"first": min(first_ns, window[1]) - window[0], "last": window[1] - max(last_ns, window[0])}
    notable_ns = max(_NOTABLE_S, *(one.period_s for one in power)) * NS_PER_S
    words = [
        f"the {which} {fmt_seconds(lack_ns / NS_PER_S)}"
        for which, lack_ns in lacks_ns.items()
        if lack_ns > notable_ns
    ]
    if not words:
        return ""
    return (
        f"Of the {whole} that rank {rank_of(part)} ran, {' and '.join(words)} were not metered: a machine's "
        "meters are read as long as its first rank runs."
    )
