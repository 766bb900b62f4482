"""Mixed precision: bfloat16 by autocast, with a GradScaler that meets an infinite gradient and goes on."""

import torch
from torch import nn
from toys import points, show

torch.manual_seed(6)
inputs, targets = (torch.from_numpy(part) for part in points(256))
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))
learning = torch.optim.AdamW(model.parameters(), 0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
for step, (places, sides) in enumerate(zip(inputs.split(32), targets.long().split(32), strict=True)):
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(places)
        loss = nn.functional.cross_entropy(scores.float(), sides)
    learning.zero_grad()
    scaler.scale(loss * (float("inf") if step == 5 else 1.0)).backward()
    scaler.unscale_(learning)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(learning)
    scaler.update()
    show("step", loss.item(), scaler.get_scale())
    print(scores.dtype, next(model.parameters()).dtype)
half = model.bfloat16()
with torch.no_grad():
    show("half", half(inputs.bfloat16()).float())
