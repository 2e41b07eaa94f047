"""Trains one language model with `gpt train` and with PyTorch, and compares the held-out loss.

    python tools/bench/gpt_train.py --gpt build/release/bin/gpt --text kjv.txt --steps 2000

Both sides have the same tokens (the bytes of the text), the same initial weights (transformers' LlamaForCausalLM),
the same batches in the same order (Windows in apps/gpt/corpus.cpp), and the same AdamW, schedule and clipping. They
run one after the other. docs/benchmarks/gpt.md has the results. Needs torch, transformers and safetensors.
"""
import argparse
import json
import math
import pathlib
import struct
import subprocess
import tempfile
import time

MASK = (1 << 64) - 1


class Random:
    """SplitMix64, as in apps/gpt/corpus.cpp."""

    def __init__(self, seed, stream):
        self.state = self.mix(seed) ^ stream

    @staticmethod
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return self.mix(self.state) % n


class Windows:
    """The first token of each sample of an endless sequence of passes over the text."""

    def __init__(self, tokens, length, seed):
        self.tokens, self.length, self.seed, self.current = tokens, length, seed, -1
        self.count = max((len(tokens) - length) // length, 1)

    def begin(self, sample):
        number, index = divmod(sample, self.count)
        if number != self.current:
            random = Random(self.seed, number)
            self.offset = random.below(len(self.tokens) - self.count * self.length)
            self.order = list(range(self.count))
            for i in range(self.count - 1, 0, -1):
                j = random.below(i + 1)
                self.order[i], self.order[j] = self.order[j], self.order[i]
            self.current = number
        return self.offset + self.order[index] * self.length


def write_tokens(path, data):
    header = struct.pack("<256i", 20240520, 1, len(data), *[0] * 253)
    path.write_bytes(header + b"".join(struct.pack("<H", b) for b in data))


def rate(step, args):
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = min((step - args.warmup) / max(args.steps - args.warmup, 1), 1)
    return args.min_lr + (1 - args.min_lr) * 0.5 * (1 + math.cos(math.pi * done))


def train_torch(args, folder, train, held_out):
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(args.threads)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=args.lr,
        betas=(0.9, 0.95), eps=1e-8)
    tokens, tested = torch.tensor(list(train)), torch.tensor(list(held_out))
    order = Windows(tokens, args.context, args.seed)

    def loss_of(source, begins):
        rows = torch.stack([source[b:b + args.context + 1] for b in begins])
        logits = model(rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def measure():
        windows = min(max((len(tested) - args.context) // args.context, 1), 200)
        total = 0.0
        for first in range(0, windows, args.batch_size):
            begins = [i * args.context for i in range(first, min(first + args.batch_size, windows))]
            total += loss_of(tested, begins).item() * len(begins)
        return total / windows

    losses, results, begin = [], {}, time.time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(step, args)
        samples = range(step * args.batch_size, (step + 1) * args.batch_size)
        loss = loss_of(tokens, [order.begin(i) for i in samples])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 250 == 0 or step + 1 == args.steps:
            results[step + 1] = measure()
            print(f"PyTorch: step {step + 1}  held-out loss {results[step + 1]:.4f}  {time.time() - begin:.0f} s",
                  flush=True)
    return losses, results, time.time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt", required=True)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--min-lr", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    data = args.text.read_bytes()
    cut = len(data) - len(data) // 20
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "train.bin", data[:cut])
        write_tokens(folder / "held_out.bin", data[cut:])
        torch.manual_seed(args.seed)
        LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=args.width, intermediate_size=(8 * args.width // 3 + 15) // 16 * 16,
            num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.heads,
            max_position_embeddings=args.context, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
        )).save_pretrained(folder / "init")
        begin = time.time()
        command = [args.gpt, "train", "--tokens", str(folder / "train.bin"), "--val", str(folder / "held_out.bin"),
                   "--init", str(folder / "init"), "--run-dir", str(folder / "run"), "--sample", "0",
                   "--checkpoint-every", "none", "--log-every", "1"]
        for option in ("steps", "batch_size", "lr", "min_lr", "warmup", "seed", "threads"):
            command += ["--" + option.replace("_", "-"), str(getattr(args, option))]
        subprocess.run(command, check=True)
        ours_s = time.time() - begin
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        ours = {line["step"]: line["val_loss"] for line in lines if line["val_loss"] is not None}
        losses, theirs, torch_s = train_torch(args, folder / "init", data[:cut], data[cut:])
    first = max(abs(line["train_loss"] - loss) for line, loss in zip(lines[:50], losses[:50]))
    print(f"largest difference of the training loss in the first 50 steps: {first:.2e}")
    print("| step | held-out loss, Tapestry | PyTorch | difference |\n|---|---|---|---|")
    for step, value in ours.items():
        print(f"| {step} | {value:.4f} | {theirs[step]:.4f} | {100 * (value / theirs[step] - 1):+.2f}% |")
    print(f"Tapestry {ours_s:.0f} s, PyTorch {torch_s:.0f} s, torch {torch.__version__}")


if __name__ == "__main__":
    main()
