"""Uses torch.profiler itself: as a block, with a schedule, with ranges of its own."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from toys import points, show

torch.manual_seed(20)
inputs, targets = (torch.from_numpy(part) for part in points(64))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
learning = torch.optim.SGD(model.parameters(), 0.1)


def step():
    """One step with a range of its own in it."""
    with record_function("my forward"):
        loss = nn.functional.cross_entropy(model(inputs), targets.long())
    learning.zero_grad()
    loss.backward()
    learning.step()
    return loss.item()


def names(events):
    """What was seen of the program's own operations, and how often."""
    seen = {event.key: event.count for event in events}
    return [(name, seen.get(name)) for name in ("my forward", "aten::linear", "aten::addmm", "aten::relu")]


show("warm", *(step() for _ in range(3)))
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as once:
    show("traced", step())
print(names(once.key_averages()))
once.export_chrome_trace("trace.json")
events = json.loads(Path("trace.json").read_text())["traceEvents"]
print(sum(event["name"] == "aten::addmm" for event in events))

ready = []
rhythm = schedule(wait=1, warmup=1, active=2, repeat=2)
with profile(schedule=rhythm, on_trace_ready=lambda one: ready.append(names(one.key_averages()))) as often:
    for _ in range(8):
        show("scheduled", step())
        often.step()
print(ready)
with torch.autograd.profiler.profile(use_kineto=False) as old:
    show("old", step())
print(names(old.key_averages()))
show("after", *(step() for _ in range(3)))
