"""Energy against size: the line that made the points is found, and what is no line is told."""

import numpy as np
import pytest

from joulemap.accounting.fit import fit, pearson
from joulemap.errors import InputError

SIZES = np.repeat([1e6, 2e6, 3e6, 5e6, 8e6], 4)


def noisy(energy, share=0.01, seed=0):
    return energy * np.random.default_rng(seed).normal(1, share, len(energy))


def test_a_line_through_zero_is_proportional():
    found = fit(SIZES, noisy(3e-6 * SIZES))
    assert found.shape == "proportional"
    assert found.slope_j.low < 3e-6 < found.slope_j.high
    assert found.r > 0.99
    assert (found.count, found.sizes) == (20, 5)


def test_a_line_with_an_offset_is_linear():
    found = fit(SIZES, noisy(10 + 3e-6 * SIZES))
    assert found.shape == "linear"
    assert found.offset_j.low < 10 < found.offset_j.high


@pytest.mark.parametrize(("power", "sign"), [(2.0, 1), (0.4, -1)])
def test_what_bends_is_not_linear_and_says_which_way(power, sign):
    found = fit(SIZES, noisy(20 * (SIZES / 8e6) ** power))
    assert found.shape == "not linear"
    assert np.sign(found.bend.value) == sign


def test_a_bend_that_is_sure_but_tiny_is_a_line():
    found = fit(SIZES, 3e-6 * SIZES + 1e-15 * SIZES**2)
    assert not found.bend.may_be_zero
    assert found.shape in ("proportional", "linear")


def test_what_does_not_grow_is_flat():
    assert fit(SIZES, noisy(np.full(len(SIZES), 5.0), 0.1)).shape == "flat"


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    inside = [
        found.low < 3e-6 < found.high
        for seed in range(300)
        for found in [fit(SIZES, 4 + 3e-6 * SIZES + np.random.default_rng(seed).normal(0, 1, 20)).slope_j]
    ]
    assert 0.9 < np.mean(inside) < 0.99


def test_two_sizes_make_a_line_of_which_nothing_is_known():
    found = fit([1, 2], [3, 5])
    assert found.shape == "not known"
    assert found.slope_j.value == pytest.approx(2)
    assert found.slope_j.high == np.inf


def test_one_size_is_refused():
    with pytest.raises(InputError, match="two or more sizes"):
        fit([1, 1], [2, 3])


def test_a_correlation_with_what_does_not_vary_is_not_a_number():
    assert np.isnan(pearson([1, 2], [3, 3]))
    assert pearson([1, 2, 3], [-1, -2, -3]) == pytest.approx(-1)
