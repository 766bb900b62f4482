"""Ranks whose prompts are of other lengths, and which began with other steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import joulemap
from joulemap.accounting import attribute
from joulemap.merging.together import Together, Traced, together
from joulemap.program import sized
from joulemap.traces import EventTrace, PowerTrace, Steps

S = 1_000_000_000
PROMPT, TOKEN = "attention", "gemv"
BARE = "inference"
ALIKE = "since they take about as long"
ROUNDS = 10


def generation(
    rank: int,
    prompt: str,
    token: str = BARE,
    traced: Sequence[int] = (0, 11),
    *,
    prompt_s: float = 1.0,
    begins_with_token: bool = False,
) -> Traced:
    """Prompts, and after each of them nine tokens of 0.1 s, on a GPU of the rank's own."""
    lasts_s = ([prompt_s] + [0.1] * 9) * ROUNDS
    labels, ops = ([prompt] + [token] * 9) * ROUNDS, ([PROMPT] + [TOKEN] * 9) * ROUNDS
    if begins_with_token:
        lasts_s, labels, ops = ([0.1, *lasts_s], [token, *labels], [TOKEN, *ops])
    end_ns = np.rint(np.cumsum(lasts_s) * S).astype(np.int64) + rank * 1000
    start_ns = end_ns - np.rint(np.array(lasts_s) * S).astype(np.int64)
    flags = [number in traced for number in range(len(labels))]
    steps = Steps.from_columns(start_ns=start_ns, end_ns=end_ns, traced=flags, label=labels)
    events = EventTrace.from_columns(
        name=[op for op, flag in zip(ops, flags, strict=True) if flag],
        device=f"GPU:{rank}",
        start_ns=start_ns[flags],
        end_ns=end_ns[flags],
        lane=f"rank {rank} 7",
    )
    return Traced(rank, steps, events)


def joined(*ranks: Traced) -> tuple[Together, dict[tuple[str, str], tuple[float, float]]]:
    """What was put together; joules and calls of each operation on each GPU, at 100 W."""
    found = together(ranks)
    assert found.steps is not None
    seconds = int(found.steps.end_ns[-1]) // S + 1
    domains = [joulemap.Domain(f"GPU:{one.rank}", f"GPU:{one.rank}") for one in ranks]
    edges = np.arange(10 * seconds + 1) * S // 10
    power = [PowerTrace(domain, edges, np.full(10 * seconds, 10.0)) for domain in domains]
    footprint = attribute(EventTrace.joined(found.events), power, steps=found.steps)
    rows = footprint.to_records()
    return found, {(row["name"], row["device"]): (row["energy_j"], row["calls"]) for row in rows}


def expected(prompt_j: float = 1000.0, token_j: float = 900.0, tokens: float = 90.0) -> dict[str, object]:
    return {
        PROMPT: pytest.approx((prompt_j, 10.0), rel=2e-3),
        TOKEN: pytest.approx((token_j, tokens), rel=2e-3),
    }


def of_gpu(rows: dict[tuple[str, str], tuple[float, float]], rank: int) -> dict[str, tuple[float, float]]:
    return {name: its for (name, device), its in rows.items() if device == f"GPU:{rank}"}


@pytest.mark.parametrize("numbers", [512, 511, 470, 100, 4000])
@pytest.mark.parametrize("traced", [(20, 31), (13, 20)])
def test_prompts_of_other_lengths_are_the_same_kind_on_all_ranks(numbers: int, traced: tuple[int]) -> None:
    """All were one kind before: attention had 1727 J, 50 calls, and an interval of 7 J."""
    ranks = generation(0, sized(BARE, 512)), generation(1, sized(BARE, numbers), traced=traced)
    found, rows = joined(*ranks)
    assert of_gpu(rows, 0) == of_gpu(rows, 1) == expected()
    assert found.steps is not None
    assert set(found.steps.label) == {sized(BARE, 512), BARE}
    assert all(note.startswith("The ranks did not trace the same steps.") for note in found.notes)


def test_a_rank_that_began_with_a_token_has_its_prompts_with_those_of_one_that_began_with_a_prompt() -> None:
    """``inference`` is a prompt of one and a token of the other: their time tells, and that is said."""
    first = generation(0, BARE, sized(BARE, 4))
    second = generation(1, sized(BARE, 2000), BARE, (21, 32), begins_with_token=True)
    found, rows = joined(first, second)
    assert of_gpu(rows, 0) == of_gpu(rows, 1) == expected()
    said = [note for note in found.notes if ALIKE in note]
    assert said == [
        f"Steps of {BARE} of rank 1 are taken for {sized(BARE, 4)}, {ALIKE}.",
        f"Steps of {sized(BARE, 2000)} of rank 1 are taken for {BARE}, {ALIKE}.",
    ]


def test_where_neither_numbers_nor_time_tell_all_are_one_kind_and_that_is_said() -> None:
    first = generation(0, BARE, sized(BARE, 4), prompt_s=0.1)
    second = generation(1, sized(BARE, 2000), BARE, (21, 32), prompt_s=0.1, begins_with_token=True)
    found, _ = joined(first, second)
    assert found.steps is not None
    assert set(found.steps.label) == {BARE}
    assert "it is not sure which are the same" in found.notes[0]


def with_longest(one: Traced, size: str) -> Traced:
    """Its last prompt is far longer than the others."""
    assert one.steps is not None
    labels = list(one.steps.label)
    labels[-10] = size
    steps = Steps.from_columns(
        start_ns=one.steps.start_ns, end_ns=one.steps.end_ns, traced=one.steps.traced, label=labels
    )
    return Traced(one.rank, steps, one.events)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_size_that_one_rank_alone_has_is_of_the_one_that_takes_about_as_long(rank: int) -> None:
    ranks = [generation(0, sized(BARE, 512)), generation(1, sized(BARE, 470), traced=(20, 31))]
    ranks[rank] = with_longest(ranks[rank], sized(BARE, 9000))
    found, rows = joined(*ranks)
    assert of_gpu(rows, 0) == of_gpu(rows, 1) == expected()
    assert (
        f"Steps of {sized(BARE, 9000)} of rank {rank} are taken for {sized(BARE, 512)}, {ALIKE}."
        in found.notes
    )


def test_three_ranks_have_the_first_one_s_sizes() -> None:
    lengths = [(0, 512, (0, 11)), (1, 70, (20, 31)), (2, 600, (40, 51))]
    found, rows = joined(*(generation(rank, sized(BARE, size), traced=its) for rank, size, its in lengths))
    assert [of_gpu(rows, rank) for rank in range(3)] == [expected()] * 3
    assert found.steps is not None
    assert set(found.steps.label) == {sized(BARE, 512), BARE}


def test_other_models_and_labels_stay_what_they_are() -> None:
    """Of a model that only some ranks call, nothing is to be the same."""
    first, second = (
        generation(0, sized("inference 2", 512), "train"),
        generation(1, sized(BARE, 512), "train"),
    )
    found = together([first, second])
    assert found.steps is not None
    assert set(found.steps.label) == {sized("inference 2", 512), "train"}


def test_a_size_that_a_rank_never_traced_is_said() -> None:
    found, rows = joined(generation(0, sized(BARE, 512)), generation(1, sized(BARE, 470), traced=(13, 14)))
    assert of_gpu(rows, 0) == expected()
    assert list(of_gpu(rows, 1)) == [TOKEN]
    [said] = [note for note in found.notes if "of rank 1 was traced" in note]
    assert said.startswith(f"No step of {sized(BARE, 512)} of rank 1 was traced")
