"""Reads standard input, talks on both streams, forks, ends with a code of its own after atexit functions."""

import atexit
import logging
import os
import sys
import warnings

import torch
from torch import nn
from toys import points, show

atexit.register(print, "at exit: first registered, last called")
atexit.register(print, "at exit: last registered, first called")
logging.basicConfig(filename="log.txt", level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
torch.manual_seed(27)
model = nn.Linear(8, 2)
learning = torch.optim.SGD(model.parameters(), 0.1)
for line in sys.stdin:
    places, sides = (torch.from_numpy(part) for part in points(32, seed=int(line)))
    loss = nn.functional.cross_entropy(model(places), sides.long())
    learning.zero_grad()
    loss.backward()
    learning.step()
    logging.info("seed %d", int(line))
    show(f"seed {int(line)}", loss.item())
    print(f"seed {int(line)} done", file=sys.stderr)
warnings.warn("the program's own warning", stacklevel=1)
sys.stdout.flush()
child = os.fork()
if child == 0:
    with torch.no_grad():
        show("in a child", model(torch.ones(1, 8)))
    sys.stdout.flush()
    os._exit(7)
print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    sys.exit(3)
finally:
    print("finally")
