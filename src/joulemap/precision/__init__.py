"""Precision: how far a footprint can be trusted, by the paper's own experiments and by a known truth."""
