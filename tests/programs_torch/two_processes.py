"""DistributedDataParallel: two spawned processes with gloo, a sampler for each, no_sync, gathering."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from toys import points, show


def learn(rank, rendezvous, answers):
    """One rank's part of the training."""
    torch.manual_seed(15)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    data = TensorDataset(*(torch.from_numpy(part) for part in points(128)))
    sampler = DistributedSampler(data, 2, rank, seed=3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    learning = torch.optim.SGD(model.parameters(), 0.1)
    for places, sides in DataLoader(data, 16, sampler=sampler):
        with model.no_sync():
            nn.functional.cross_entropy(model(places[:4]), sides[:4].long()).backward()
        loss = nn.functional.cross_entropy(model(places), sides.long())
        loss.backward()
        learning.step()
        learning.zero_grad()
    losses = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(losses, loss.detach())
    same = [torch.zeros_like(model.module[0].weight) for _ in range(2)]
    dist.all_gather(same, model.module[0].weight.detach())
    if rank == 0:
        answers.put(([one.item() for one in losses], same[0].tolist(), torch.equal(*same)))
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Starts both ranks, and does something itself meanwhile."""
    answers = mp.get_context("spawn").SimpleQueue()
    ranks = mp.spawn(learn, (str(Path("rendezvous").resolve()), answers), nprocs=2, join=False)
    losses, weights, same = answers.get()
    while not ranks.join():
        pass
    show("losses", *losses)
    show("weights", weights)
    print("same on both", same)
    torch.manual_seed(16)
    with torch.no_grad():
        show("here", nn.Linear(8, 2)(torch.ones(4, 8)))


if __name__ == "__main__":
    main()
