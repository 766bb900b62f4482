"""``python -m joulemap``."""

from joulemap.cli import main

main()
