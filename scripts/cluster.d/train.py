"""A rank of a training run that stops after some steps, and goes on with any number of ranks. See objects.py.

Usage: train.py PACK FOLDER STEPS; FOLDER has the checkpoint. The last run checks that each sample came once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import fffs.torch

EPOCHS, BATCH = 2, 256


def decode(data: Any) -> tuple[int, float]:
    """Return the number in the name of an object, which its bytes begin with, and a feature."""
    return int(bytes(data[: bytes(data[:64]).index(b".")]).rpartition(b"/")[2]), float(data.mean())


def main() -> None:
    """Train to the end, or for a number of steps."""
    pack, checkpoint, left = sys.argv[1], Path(sys.argv[2], "checkpoint"), int(sys.argv[3])
    distributed.init_process_group("gloo")
    dataset = fffs.torch.PackedFolder(pack, decode)
    sampler = fffs.torch.ElasticBatchSampler(dataset, batch_size=BATCH, seed=3)
    loader = fffs.torch.DataLoader(dataset, batch_sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    taken = torch.zeros(EPOCHS, len(dataset), dtype=torch.int16)  # how often each sample came, to this rank
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        taken += saved["taken"] if distributed.get_rank() == 0 else 0
    for epoch in range(sampler.epoch, EPOCHS):
        for (numbers, features), classes in loader:
            optimizer.zero_grad()
            error = model(features[:, None].float())[:, 0] - classes
            (error**2).mean().backward()
            optimizer.step()
            taken[epoch] += torch.bincount(numbers, minlength=len(dataset)).to(torch.int16)
            left -= 1
            if not left:
                break
        if not left:
            break
    counts = taken.to(torch.int32)
    distributed.all_reduce(counts)
    if distributed.get_rank() == 0:
        torch.save({"loader": loader.state_dict(), "model": model.state_dict(), "taken": counts.short()}, checkpoint)
        wanted = {0, 1} if not left else {1}
        found = set(counts.unique().tolist())
        if not found <= wanted:
            sys.exit(f"samples came {found} times, not {wanted}")
        print(f"{distributed.get_world_size()} ranks: {int(counts.sum())} of {counts.numel()} samples, each once")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
