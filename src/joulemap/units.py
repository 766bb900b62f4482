"""Joules, watts, seconds: parsed from people, and printed with the digits that are known.

Inside joulemap a quantity is a float in J, W or s, or an int in ns, and its name says which. Only this
module turns them into text and back.
"""

from __future__ import annotations

import math
import re

from joulemap.errors import InputError

NS_PER_S = 1_000_000_000

_PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))
_FACTORS = dict(_PREFIXES) | {"u": 1e-6}
_QUANTITY = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([GMkmµun]?)([A-Za-z]*)\s*$")


def parse(text: str, unit: str) -> float:
    """Read ``'250 mW'`` as watts: a number, an SI prefix and the unit, which may be left out."""
    match = _QUANTITY.match(text)
    if match and match[3] in ("", unit) and not (match[2] and not match[3] and match[2] != unit):
        try:
            return float(match[1]) * _FACTORS[match[2]]
        except ValueError:
            pass
    raise InputError(f"{text!r} is not a quantity in {unit}.", f"Write it like 12{unit} or 250m{unit}.")


def parse_share(text: str) -> float:
    """Read ``1%``, ``0.5 %``, ``0.01`` or ``0`` as a share of one."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share <= 1:
        raise InputError(f"{text!r} is not a share.", "Write it like 1% or 0.01.")
    return share


def decimals_known(half_width: float) -> int:
    """Decimal places that an uncertainty supports: two digits of it, as physicists print it.

    Negative when not even the unit digit is known: ±1400 gives -2.
    """
    return 1 - math.floor(math.log10(half_width))


def fmt(value: float, unit: str, half_width: float | None = None, digits: int = 3) -> str:
    """``fmt(812.34, 'J', 9.1)`` is ``'812.3 J'``; without an uncertainty ``digits`` are significant.

    Digits that the uncertainty does not support are not printed; a true zero is ``0 J``.
    """
    if not math.isfinite(value):
        raise InputError(f"{value} {unit} cannot be shown.")
    if value == 0:
        return f"0 {unit}"
    prefix, factor = scale_for(max(abs(value), half_width or 0.0))
    scaled = value / factor
    if half_width and half_width > 0:
        places = min(decimals_known(half_width / factor), 6)
    else:
        rounded = float(f"{scaled:.{digits - 1}e}")
        places = digits - 1 - math.floor(math.log10(abs(rounded)))
    scaled = round(scaled, places)
    return f"{scaled:.{max(places, 0)}f} {prefix}{unit}"


def fmt_pm(value: float, unit: str, half_width: float | None) -> str:
    """``'812.3 ± 9.1 J'``, value and uncertainty in one unit and to the same place."""
    if half_width is None or half_width <= 0:
        return fmt(value, unit)
    prefix, factor = scale_for(max(abs(value), half_width))
    places = min(decimals_known(half_width / factor), 6)
    shown = max(places, 0)
    number, spread = round(value / factor, places), round(half_width / factor, places)
    return f"{number:.{shown}f} ± {spread:.{shown}f} {prefix}{unit}"


def scale_for(magnitude: float) -> tuple[str, float]:
    """The SI prefix under which a magnitude reads as 1 to 999."""
    for prefix, factor in _PREFIXES:
        if magnitude >= factor * 0.9995:
            return prefix, factor
    return _PREFIXES[-1]


def fmt_seconds(seconds: float) -> str:
    """``'740 µs'``, ``'5.42 s'``, ``'1 h 04 min'``."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return fmt(seconds, "s")


def fmt_share(share: float) -> str:
    """A share of one as a percentage with at most three digits: ``'61.2 %'``."""
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 99.95 else f"{percent:.1f} %"
