"""Stands in for the replays of a framework: writes its lines, and ends where an operation's name says so."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(plan, result):
    if "REPLAYS_END" in os.environ:
        os._exit(1)
    said = json.loads(Path(plan).read_text())
    with Path(result).open("w") as file:
        for key, _ in [*said["shares"], ["", 0.0]]:
            if key == "ends":
                os._exit(1)
            if key == "is interrupted":
                os.kill(os.getpid(), signal.SIGTERM)
            if key == "hears Ctrl-C":
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            begin_ns = time.time_ns()
            time.sleep(said["seconds"])
            line = {
                "key": key,
                "start_ns": begin_ns,
                "end_ns": time.time_ns(),
                "executions": 1,
                "marks": [],
            }
            if "fails" in key:
                line["skipped"] = "odd"
            print(json.dumps(line), file=file, flush=True)
            if "ends" in key:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
