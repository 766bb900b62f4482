"""Writes docs/bert-h200.md from the published H200 recording: every table in it is real output.

python scripts/make_worked_example.py H200_FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "bert-h200.md"

TEXT = """\
# A worked example: BERT-base on an H200

Sixty training steps of BERT-base (PyTorch 2.11, eager, bf16 autocast, batch 32, length 128) on an
NVIDIA H200, recorded with `torch.profiler` and the GPU's energy counter: 847 thousand events and 74
updates of the counter.

## From a trace and a power log to a recording

{import}

## Where the joules went

{show}

What it says:

- **The GPU waits.** It was busy for 1.1 s of 5.4 s: in eager mode, under a profiler, the host
  cannot launch kernels fast enough. Four fifths of the energy were drawn while nothing ran, nearly
  all of it inside steps.
- **Every layer costs the same**, and its backward pass twice its forward pass.
- **The vocabulary's decoder** (`cls/predictions/decoder`) costs as much as two and a half layers.
- **±** covers the spread over 60 steps, and a counter that updates every 100 ms. It does not cover
  what no rule of time can know: inside one update all get the same power, so the 211 W of kernels
  and the 210 W of waiting are one average. See [what no rule of time can know](accounting.md#the-
  rules).

## By operation and by phase

{op}

{phase}

## Net

Only time that was traced can be known to be quiet, and this trace has none: the baseline is given.
With a live context at high clocks this GPU draws about 122 W.

{net}

## All layers as one

{summarised}
"""

COMMANDS = {
    "import": "import --events trace.json.gz --power power.csv -o h200.joulemap",
    "show": "show h200.joulemap",
    "op": "show h200.joulemap --by op --top 8",
    "phase": "show h200.joulemap --by phase",
    "net": "show h200.joulemap --baseline GPU:0=122W --depth 1",
    "summarised": "show h200.joulemap --summarised --depth 4",
}


def console(arguments: str, folder: str) -> str:
    command = [sys.executable, "-m", "joulemap", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    output = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"```console\n$ joulemap {arguments}\n{output}\n```"


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, HERE / "h200_as_chrome_trace.py", source, folder], check=True)
        shown = {name: console(arguments, folder) for name, arguments in COMMANDS.items()}
    PAGE.write_text(TEXT.format(**shown))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
