"""PyTorch's side of tools/bench_ddp and tools/bench_modes: one rank, with the commands `step` and `memory` of ddp_steps.cpp.

usage: ddp_torch.py [channels_last] [mlp]
"""
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from models import Cnn, WideMlp


def main():
    layout = torch.channels_last if "channels_last" in sys.argv else torch.contiguous_format
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, 2 // world))
    wide = "mlp" in sys.argv
    model = WideMlp() if wide else Cnn().to(memory_format=layout)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(64, 784) if wide else torch.randn(64, 1, 28, 28).contiguous(memory_format=layout)
    target = torch.randint(0, 10, (64,))
    while True:
        said = [sys.stdin.readline() if rank == 0 else None]
        dist.broadcast_object_list(said)
        words = said[0].split()
        if not words:
            break
        if words[0] == "step":
            times, low = [], "bf16" in words
            for _ in range(int(words[1])):
                start = time.perf_counter()
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    loss = nn.functional.cross_entropy(ddp(x), target)
                loss.backward()
                optimizer.step()
                times.append((time.perf_counter() - start) * 1e3)
            answer = " ".join(f"{t:.6f}" for t in times)
        else:
            sizes = [None] * world
            dist.all_gather_object(sizes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
            answer = " ".join(map(str, sizes))
        if rank == 0:
            print(answer, flush=True)
    dist.destroy_process_group()


main()
