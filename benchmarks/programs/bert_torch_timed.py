"""The PyTorch BERT example with a clock: writes the time at which each step ended to the file named first."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import bert_torch
from torch.optim.optimizer import register_optimizer_step_post_hook

path = sys.argv.pop(1)
ends_s: list[float] = []
register_optimizer_step_post_hook(lambda *_: ends_s.append(time.perf_counter()))
bert_torch.main()
Path(path).write_text(json.dumps({"ends_s": ends_s, "cpu_s": time.process_time()}))
