"""The ranks of one job, joined into one recording."""

from joulemap.merging.join import Merged, merge

__all__ = ["Merged", "merge"]
