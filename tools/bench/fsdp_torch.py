"""PyTorch's side of tools/bench_fsdp: one rank, with the commands `losses` and `step` of fsdp.cpp.

usage: fsdp_torch.py ddp|fsdp|fsdp-keep gpt|deep WEIGHTS [--optimizer default|foreach|fused] [--compile]
"""
import argparse
import json
import sys
import time
import warnings

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from models import Gpt

BATCHES = 4
MODELS = {"gpt": ({"width": 256, "blocks": 4}, 4), "deep": ({"width": 128, "blocks": 24}, 2)}


def words(count, limit, seed):
    i = numpy.arange(1, count + 1, dtype=numpy.int64)
    return torch.from_numpy(i * (seed + 7919) * 1103515245 // 65536 % limit)


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    return {name: torch.frombuffer(bytearray(data[t["data_offsets"][0]:t["data_offsets"][1]]), dtype=torch.float32)
            .reshape(t["shape"]) for name, t in header.items() if name != "__metadata__"}


class Trainer:
    def __init__(self, args):
        torch.set_num_threads(1)
        self.args = args
        options, batch = MODELS[args.model]
        self.model = Gpt(**options)
        self.model.load_state_dict(read_safetensors(args.weights))
        if args.mode == "ddp":
            self.net = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        else:
            for block in self.model.blocks:
                fully_shard(block, reshard_after_forward=args.mode == "fsdp")
            self.net = fully_shard(self.model)
        if args.compile:
            self.net = torch.compile(self.net)
        seeds = [2 * (BATCHES * dist.get_rank() + k) for k in range(BATCHES)]
        count = batch * Gpt.LENGTH
        self.ids = [words(count, Gpt.WORDS, seed).view(batch, Gpt.LENGTH) for seed in seeds]
        self.next = [words(count, Gpt.WORDS, seed + 1) for seed in seeds]

    def step(self, k):
        k %= BATCHES
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(self.ids[k]), self.next[k])
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self, steps):
        how = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}[self.args.optimizer]
        optimizers = (torch.optim.SGD(self.model.parameters(), lr=0.1),
                      torch.optim.AdamW(self.model.parameters(), lr=1e-3, **how))
        answer = []
        for self.optimizer in optimizers:
            for i in range(steps):
                of_ranks = [None] * dist.get_world_size()
                dist.all_gather_object(of_ranks, self.step(i).item())
                answer += of_ranks
        return answer

    def times(self, repeats):
        answer = []
        for i in range(repeats):
            start = time.perf_counter()
            self.step(i)
            answer.append((time.perf_counter() - start) * 1e3)
        return answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("model")
    parser.add_argument("weights")
    parser.add_argument("--optimizer", default="default")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    # The model returns a view of its logits. FSDP2 warns that it must not be changed in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    while True:
        said = [sys.stdin.readline() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(said)
        command = said[0].split()
        if not command:
            break
        answer = (trainer.losses if command[0] == "losses" else trainer.times)(int(command[1]))
        if dist.get_rank() == 0:
            print(" ".join(f"{a:.9g}" for a in answer), flush=True)
    dist.destroy_process_group()


main()
