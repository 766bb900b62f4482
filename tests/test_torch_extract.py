"""What operations were called with, taken out of the profiler: alike is alike, however it came about."""

import pytest

torch = pytest.importorskip("torch")

from joulemap.frameworks.torch.extract import _packed  # noqa: E402 - it needs torch


def test_what_is_alike_is_packed_alike_whoever_else_has_it():
    shared = "long int"
    apart = "".join(["long", " ", "int"])
    assert shared is not apart
    once, again = ([[2, 3]], [shared, shared], [None, 0.5]), ([[2, 3]], [shared, apart], [None, 0.5])
    assert len(set(_packed([once, again, once]))) == 1


@pytest.mark.parametrize("other", [2.0, True, None, "2", [2]])
def test_what_differs_is_packed_otherwise(other):
    assert len(set(_packed([([2],), ([other],)]))) == 2


def test_objects_that_cannot_be_packed_are_told_by_what_they_are_called():
    one, same, other = _packed([([torch.float32],), ([torch.float32],), ([torch.float16],)])
    assert one == same != other
