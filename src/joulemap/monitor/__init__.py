"""The metering process beside the program: sampling, serving, recording."""
