"""Recording a running program, in two halves.

*Inside* the program's process: ``launch`` (runs the program as Python would), ``imports`` (notices
frameworks), ``steps``, ``budget`` and ``sessions`` (where steps lie, which to trace), ``journal`` (writes it
all down), put together in ``inside``. It uses the standard library alone: a program that sets its threads
before it imports NumPy must find NumPy unimported.

*Outside*, when the program has ended: ``finish`` turns the journal and the raw traces into the tables of the
recording. ``run`` and ``record`` put the halves together: around another process, or in this one.
"""
