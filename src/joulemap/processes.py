"""Whose energy a domain's energy is: the share that belongs to this program, over time.

A CPU package serves every process on the socket. The monitor records, interval by interval, which part
of the socket's busy time was this program's; that part of the energy is accounted, and the rest goes to
*other processes*. A domain without shares (a GPU of our own) belongs to the program altogether.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulemap.errors import InputError
from joulemap.traces import Float64, Int64


@dataclass(frozen=True, eq=False)
class ProcessShares:
    """``share[i]`` of the domain's energy in ``[edges_ns[i], edges_ns[i+1])`` is this program's."""

    domain: str
    edges_ns: Int64
    share: Float64

    @classmethod
    def from_columns(cls, domain: str, edges_ns: ArrayLike, share: ArrayLike) -> ProcessShares:
        """Check the columns: n shares between 0 and 1 have n + 1 edges; none at all may have no edge."""
        edges, shares = np.asarray(edges_ns, np.int64), np.asarray(share, np.float64)
        if len(edges) != len(shares) + (len(edges) > 0) or (np.diff(edges) < 0).any():
            raise InputError(f"{domain}: {len(shares)} shares need {len(shares) + 1} edges in order of time.")
        if not ((shares >= 0) & (shares <= 1)).all():
            raise InputError(
                f"{domain}: a program's share of the energy lies between 0 and 1.",
                "A share is its busy time over all busy time of the socket.",
            )
        return cls(domain, edges, shares)

    def at(self, t_ns: Int64) -> Float64:
        """The share at each time; before the first interval and after the last, that interval's."""
        if not len(self.share):
            return np.ones(len(t_ns))
        index = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        return self.share[np.clip(index, 0, len(self.share) - 1)]

    def __len__(self) -> int:
        return len(self.share)
