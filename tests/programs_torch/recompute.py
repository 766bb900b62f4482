"""Less memory for more time: layers forgotten and computed again in backward, the same dropout."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from toys import points, show

torch.manual_seed(7)
inputs, targets = (torch.from_numpy(part).float() for part in points(64))


class Block(nn.Module):
    """A layer that counts how often it runs."""

    runs = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, inputs):
        Block.runs += 1
        return inputs + self.dropout(torch.tanh(self.linear(inputs)))


class Deep(nn.Module):
    """Blocks that are checkpointed one by one."""

    def __init__(self, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 1)
        self.reentrant = reentrant

    def forward(self, inputs):
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=self.reentrant)
        return self.head(inputs).squeeze(-1)


for reentrant in (False, True):
    model = Deep(reentrant)
    learning = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(4):
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs.requires_grad_()), targets)
        loss.backward()
        learning.step()
        learning.zero_grad()
    show("reentrant" if reentrant else "not", loss.item(), Block.runs)
stack = nn.Sequential(*(Block() for _ in range(4)))
checkpoint_sequential(stack, 2, inputs, use_reentrant=False).sum().backward()
show("stack", *(weight.grad for weight in stack.parameters()))
print("runs", Block.runs)
