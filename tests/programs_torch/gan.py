"""Two networks against each other: two optimizers in turn, a frozen judge, random numbers of its own."""

import torch
from torch import nn
from toys import images, show

torch.manual_seed(4)
generator = nn.Sequential(
    nn.Linear(8, 144), nn.ReLU(), nn.Unflatten(1, (4, 6, 6)), nn.ConvTranspose2d(4, 1, 4, 2, 1)
)
judge = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))
judge(torch.zeros(1, 1, 12, 12))
making = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.999))
judging = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
error = nn.BCEWithLogitsLoss()
noise = torch.Generator().manual_seed(1)
real_pictures = torch.from_numpy(images(192)[0]).permute(0, 3, 1, 2)

for _ in range(2):
    for real in real_pictures.split(32):
        fake = generator(torch.randn(32, 8, generator=noise))
        said_real, said_fake = judge(real), judge(fake.detach())
        judge_loss = error(said_real, torch.ones(32, 1)) + error(said_fake, torch.zeros(32, 1))
        judging.zero_grad()
        judge_loss.backward()
        judging.step()

        judge.requires_grad_(False)
        maker_loss = error(judge(fake), torch.ones(32, 1))
        making.zero_grad()
        maker_loss.backward()
        making.step()
        judge.requires_grad_(True)
    show("losses", judge_loss.item(), maker_loss.item())
with torch.inference_mode():
    show("picture", generator(torch.ones(1, 8)))
