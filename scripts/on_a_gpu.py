"""What only a machine with a GPU can say of this code, one part after the other.

    python scripts/on_a_gpu.py FOLDER                      all of it, in half an hour
    python scripts/on_a_gpu.py FOLDER compiled triton      these parts
    python scripts/on_a_gpu.py FOLDER --tiny --seconds 10  a try-out on any machine

docs/pytorch.md and docs/accuracy.md report what comes of it. What a part says goes to a file in the folder,
and the end of it to the screen; a part that takes too long is ended, and the next one begins. joulemap need
not be installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
BERT, LLAMA = "bert-train --batch 32 --length 128", "llama-decode --batch 8 --length 1024"
TINY = "--tiny --batch 4 --length 32 --device cpu"
LARGE = "--layers 12 --hidden 768 --heads 12 --seq 128 --batch 32 --dtype bfloat16"
SMALL = "--layers 2 --hidden 64 --heads 2 --seq 32 --batch 8"
TESTS = "-m pytest -m gpu -p no:randomly -q --show-capture=no --continue-on-collection-errors tests"
"""Files that need more than is there are passed over."""
SAID = 25
"""Lines of a part that are shown when it is over."""


def commands(folder: Path, seconds: float, tiny: bool) -> dict[str, list[str]]:
    """Every part, and what it runs, with this Python."""
    bert, llama = (f"bert-train {TINY}", f"llama-decode {TINY}") if tiny else (BERT, LLAMA)
    device = "cpu" if tiny else "cuda"
    blocks = f"benchmarks/blocks.py --seconds {seconds} --fewest 4 --block 0.25 --json {folder}"
    live = f"-m studies.accuracy.live --budget {seconds} --calibration 60 --least 0.012 --output {folder}"
    recording, model = folder / "compiled.joulemap", SMALL if tiny else LARGE
    return {
        "tests": [TESTS],
        "eager": [f"{blocks}/eager.json {bert}"],
        "compiled": [f"{blocks}/compiled.json {bert} --compile"],
        "decode": [f"{blocks}/decode.json {llama}"],
        "triton": [
            f"-m joulemap run --calibrate -o {recording} examples/bert_torch.py {model} --steps 300 "
            f"--compile --device {device}",
            f"-m joulemap show {recording} --rule calibrated --depth 4",
        ],
        "accuracy": [f"{live} {bert}"],
        "generated": [f"{live} --name bert-train-compiled {bert} --compile"],
    }


def main() -> int:
    """Run them; how many ended otherwise than well."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="for what is found")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(commands(Path(), 0, False)))
    parser.add_argument("--seconds", type=float, default=150.0, help="of blocks, and of repeating")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a command, at most")
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU")
    asked = parser.parse_intermixed_args()
    folder = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    known = commands(folder, asked.seconds, asked.tiny)
    if wrong := set(asked.parts) - set(known):
        parser.error(f"{', '.join(sorted(wrong))}: parts are {', '.join(known)}")
    return sum(bool(run(part, known[part], folder, asked.limit)) for part in asked.parts or known)


def run(part: str, lines: Sequence[str], folder: Path, limit_s: float) -> list[str]:
    """Run a part, and show the end of what it has said; how those commands ended that went wrong."""
    log, begin_s = folder / f"{part}.log", time.monotonic()
    with log.open("w") as output:
        wrong = [ended for line in lines if (ended := _run(line.split(), output.fileno(), limit_s))]
    print(f"\n## {', '.join((f'{part}: {time.monotonic() - begin_s:.0f} s', *wrong))}")
    print(*log.read_text().splitlines()[-SAID:], sep="\n", flush=True)
    return wrong


def _run(arguments: Sequence[str], output: int, limit_s: float) -> str:
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}
    try:
        code = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | paths,
            stdout=output,
            stderr=output,
            timeout=limit_s,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return f"ended after {limit_s:.0f} s"
    return f"exit code {code}" if code else ""


if __name__ == "__main__":
    sys.exit(main())
