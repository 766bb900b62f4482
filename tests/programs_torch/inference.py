"""Inference in all its ways: no_grad, inference_mode, eval with gradients at hand, directly, on meta."""

import torch
from torch import nn
from toys import points, show

torch.manual_seed(23)
inputs = torch.from_numpy(points(128)[0])
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


@torch.inference_mode()
def answer(places):
    """As a decorator."""
    return model(places).softmax(-1)


for places in inputs.split(32):
    with torch.no_grad():
        show("no_grad", model(places))
    show("inference_mode", answer(places))
    show("with gradients at hand", model(places).detach())
kept = answer(inputs[:2])
print(kept.is_inference(), model(inputs).requires_grad)
try:
    kept.requires_grad_().sum().backward()
except RuntimeError as error:
    print("refused:", str(error)[:60])
with torch.no_grad():
    show("direct", model.forward(inputs), model[0].forward(inputs))
    show("channels", nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)(inputs.view(-1, 2, 8, 8)))
shape = model.to("meta")(torch.empty(5, 8, device="meta")).shape
print("meta", tuple(shape))
