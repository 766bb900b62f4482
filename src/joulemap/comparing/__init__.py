"""Comparing: variants of a program against each other, from the recordings of each."""
