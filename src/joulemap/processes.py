"""Whose energy a domain's energy is: the share that belongs to this program, over time.

A CPU package serves every process on the socket. The monitor records, interval by interval, which part
of the socket's busy time was this program's; that part of the energy is accounted, and the rest goes to
*other processes*. A domain without shares (a GPU of our own) belongs to the program altogether.

Processes that load data work while the program's own threads do something else: what they use is known
apart, so that no layer has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulemap.errors import InputError
from joulemap.traces import Float64, Int64


@dataclass(frozen=True, eq=False)
class ProcessShares:
    """``share[i]`` of the domain's energy in ``[edges_ns[i], edges_ns[i+1])`` is this program's, and of that
    ``loading[i]`` what processes take which load its data."""

    domain: str
    edges_ns: Int64
    share: Float64
    loading: Float64

    @classmethod
    def from_columns(
        cls, domain: str, edges_ns: ArrayLike, share: ArrayLike, loading: ArrayLike | None = None
    ) -> ProcessShares:
        """Check the columns: n shares between 0 and 1 have n + 1 edges; none at all may have no edge."""
        edges, shares = np.asarray(edges_ns, np.int64), np.asarray(share, np.float64)
        loads = np.zeros(len(shares)) if loading is None else np.asarray(loading, np.float64)
        if len(edges) != len(shares) + (len(edges) > 0) or (np.diff(edges) < 0).any():
            raise InputError(f"{domain}: {len(shares)} shares need {len(shares) + 1} edges in order of time.")
        if not ((shares >= 0) & (shares <= 1)).all():
            raise InputError(
                f"{domain}: a program's share of the energy lies between 0 and 1.",
                "A share is its busy time over all busy time of the socket.",
            )
        if len(loads) != len(shares) or not ((loads >= 0) & (loads <= shares)).all():
            raise InputError(f"{domain}: what loads data is a part of the program's share.")
        return cls(domain, edges, shares, loads)

    def at(self, t_ns: Int64) -> Float64:
        """The share at each time; before the first interval and after the last, that interval's."""
        return self.share[self._interval(t_ns)] if len(self.share) else np.ones(len(t_ns))

    def loading_at(self, t_ns: Int64) -> Float64:
        """The part of it that loads data, likewise."""
        return self.loading[self._interval(t_ns)] if len(self.loading) else np.zeros(len(t_ns))

    def _interval(self, t_ns: Int64) -> Int64:
        index = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        return np.asarray(np.clip(index, 0, len(self.share) - 1), np.int64)

    def __len__(self) -> int:
        return len(self.share)
