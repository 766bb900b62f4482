"""Validating: what operations really cost inside a program, against what the accounting says of them."""
