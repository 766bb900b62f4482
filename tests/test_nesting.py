"""Intervals on lanes, and which of them lie inside which."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulemap.frameworks.nesting import Forest


def brute_force_parents(lane, start, end):
    """The parent of each row, one row at a time, with the longest of equal starts outside."""
    order = sorted(range(len(start)), key=lambda i: (lane[i], start[i], -end[i]))
    parent, stack = [-1] * len(start), []
    for i in order:
        while stack and (lane[stack[-1]] != lane[i] or end[stack[-1]] <= start[i]):
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        stack.append(i)
    return parent


@st.composite
def nested_intervals(draw):
    """Intervals that nest, in up to three lanes, with ties and shared borders."""
    rows = []

    def fill(lane, start, end, depth):
        cuts = sorted(draw(st.lists(st.integers(start, end), max_size=4)))
        for a, b in zip(cuts[::2], cuts[1::2], strict=False):
            if a < b:
                rows.append((lane, a, b))
                if depth < 3:
                    fill(lane, a, b, depth + 1)

    for lane in range(draw(st.integers(1, 3))):
        fill(lane, 0, 30, 0)
    return draw(st.permutations(rows))


@given(nested_intervals())
def test_parents_are_those_of_a_stack(rows):
    lane, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    forest = Forest.of(lane, start, end)
    assert forest.parent.tolist() == brute_force_parents(lane.tolist(), start.tolist(), end.tolist())
    assert forest.end_ns.tolist() == end.tolist()
    assert sorted(np.concatenate(forest.levels).tolist()) == list(range(len(rows))) if rows else True


@given(nested_intervals(), st.data())
def test_rows_around_others_are_those_and_their_parents(rows, data):
    lane, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    forest = Forest.of(lane, start, end)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    expected = set()
    for row in chosen:
        while row != -1:
            expected.add(row)
            row = int(forest.parent[row])
    assert set(np.flatnonzero(forest.around(np.array(chosen, np.int64))).tolist()) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 25)), max_size=12))
def test_crossing_intervals_are_cut_until_they_nest(rows):
    lane = np.array([row[0] for row in rows], np.int64)
    start = np.array([row[1] for row in rows], np.int64)
    end = start + np.array([row[2] for row in rows], np.int64)
    forest = Forest.of(lane, start, end)
    assert (forest.end_ns <= end).all()
    assert (forest.end_ns >= start).all()
    for row, parent in enumerate(forest.parent.tolist()):
        if parent >= 0:
            assert lane[parent] == lane[row]
            assert start[parent] <= start[row]
            assert max(forest.end_ns[parent], start[parent] + 1) >= forest.end_ns[row]


def test_values_are_inherited_from_the_nearest_row_above():
    forest = Forest.of(np.zeros(4, np.int64), np.array([0, 1, 2, 20]), np.array([10, 9, 8, 30]))
    assert forest.inherit(np.array([7, -1, -1, -1])).tolist() == [7, 7, 7, -1]
    assert forest.inherit(np.array([7, 3, -1, 5])).tolist() == [7, 3, 3, 5]
