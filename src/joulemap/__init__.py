"""joulemap: where do my joules go?"""

__version__ = "0.1.0.dev0"
