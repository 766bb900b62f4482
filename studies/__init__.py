"""Published experiments, run again: one folder a paper, one command a question."""
