"""Quantities: read from people, printed with the digits that are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.errors import InputError
from joulemap.units import fmt, fmt_pm, fmt_seconds, fmt_share, parse


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("65W", "W", 65),
        ("250 mW", "W", 0.25),
        ("1.5kJ", "J", 1500),
        ("10", "s", 10),
        ("5ms", "s", 0.005),
        ("3 µs", "s", 3e-6),
    ],
)
def test_quantities_are_read(text, unit, value):
    assert parse(text, unit) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "W", "12 J", "twelve", "1..2W", "12k"])
def test_what_is_not_a_quantity_is_refused(text):
    with pytest.raises(InputError, match="not a quantity"):
        parse(text, "W")


@pytest.mark.parametrize(
    ("value", "half", "shown"),
    [
        (812.34, 9.1, "812.3 J"),
        (812.34, None, "812 J"),
        (1234.5, 140, "1.23 kJ"),
        (0.0, None, "0 J"),
        (0.0123, None, "12.3 mJ"),
        (999.96, None, "1.00 kJ"),
        (3.2e-7, None, "320 nJ"),
        (5000.0, 3000.0, "5.0 kJ"),
    ],
)
def test_only_known_digits_are_printed(value, half, shown):
    assert fmt(value, "J", half) == shown


def test_value_and_spread_are_printed_to_the_same_place():
    assert fmt_pm(812.34, "J", 9.123) == "812.3 ± 9.1 J"
    assert fmt_pm(81234, "J", 912) == "81.23 ± 0.91 kJ"
    assert fmt_pm(5.0, "J", None) == "5.00 J"


def test_times_and_shares_read_well():
    assert [fmt_seconds(s) for s in (7.4e-4, 5.42, 130, 3840)] == [
        "740 µs",
        "5.42 s",
        "2 min 10 s",
        "1 h 04 min",
    ]
    assert [fmt_share(s) for s in (0.6123, 1.0, 0.0)] == ["61.2 %", "100 %", "0.0 %"]
    with pytest.raises(InputError):
        fmt(float("nan"), "J")


@given(st.floats(1e-9, 1e12), st.floats(1e-9, 1e12))
def test_any_value_with_any_spread_can_be_printed(value, half):
    assert fmt_pm(value, "J", half).endswith("J")
    assert fmt(value, "J", half).endswith("J")
