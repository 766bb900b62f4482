"""The commands, one a file. A module here imports what it needs when it runs, so that ``--help`` is quick."""
