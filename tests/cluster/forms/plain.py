"""A script of plain torch.distributed that has never heard of hpcrun."""

import torch

torch.distributed.init_process_group("gloo")
rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
total = torch.tensor([float(rank)])
torch.distributed.all_reduce(total)
print(f"rank {rank} of {world_size} has {total.item():.0f}")
torch.distributed.destroy_process_group()
