"""PyTorch's side of tools/bench_lm. It also starts Tapestry's and llm.c's sides, lets all take turns, and prints the results.

usage: lm_steps.py TAPESTRY_PROGRAM [--llmc LLMC_PROGRAM] [--compile] [--threads 2] [--rounds 5] [--models NAME...]
"""
import argparse
import os
import statistics
import tempfile

import numpy
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from turns import Ours, cpu_name, rest, theirs


def smollm2():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, attn_implementation="sdpa", use_cache=False))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="sdpa",
                                      use_cache=False))


# name -> (model, batch, length)
MODELS = {"smollm2": (smollm2, 4, 256), "gpt2": (gpt2, 4, 64)}


def floating_point_operations(model, batch, length):
    """Of one step: 6 for each weight of a product and token, and causal attention's two products, counted for the keys
    that a token sees: forward, and twice as many in backward."""
    config = model.config
    width, layers = config.hidden_size, config.num_hidden_layers
    heads_width = config.num_attention_heads * getattr(config, "head_dim", width // config.num_attention_heads)
    weights = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and "wpe" not in n
                  and "wte" not in n) + config.vocab_size * width
    tokens = batch * length
    return 6 * weights * tokens + 3 * 4 * layers * heads_width * batch * length * (length + 1) // 2


def training_step(model, batch, length, compiled):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (batch, length))
    run = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad()
        run(ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def write_llmc_checkpoint(path):
    """GPT-2 of 124 M parameters with random weights, in llm.c's format, version 3."""
    layers, width, words, padded, context = 12, 768, 50257, 50304, 1024
    header = numpy.zeros(256, numpy.int32)
    header[:8] = 20240326, 3, context, words, layers, 12, width, padded
    normal = numpy.random.default_rng(0)
    ones, zeros, random = (lambda n: numpy.ones(n, numpy.float32)), (lambda n: numpy.zeros(n, numpy.float32)), \
        (lambda n: normal.standard_normal(n, numpy.float32) * numpy.float32(0.02))
    L, C = layers, width
    with open(path, "wb") as f:
        header.tofile(f)
        for part in (random(padded * C), random(context * C), ones(L * C), zeros(L * C), random(L * 3 * C * C), zeros(L * 3 * C),
                     random(L * C * C), zeros(L * C), ones(L * C), zeros(L * C), random(L * 4 * C * C), zeros(L * 4 * C),
                     random(L * 4 * C * C), zeros(L * C), ones(C), zeros(C)):
            part.tofile(f)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--llmc")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    ours = Ours(args.program, args.threads)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, {cpu_name()}, "
          f"{args.rounds} interleaved rounds, f32")
    print("| model | program | median ms | fastest ms | / Tapestry's median | / Tapestry's fastest | of the FMA roof |")
    print("|---|---|---|---|---|---|---|")
    for name in args.models:
        make, batch, length = MODELS[name]
        sides = {"Tapestry": lambda: ours.run(name, 1)}
        model = make()
        operations = floating_point_operations(model, batch, length)
        eager = training_step(model, batch, length, False)
        sides["PyTorch eager"] = lambda: theirs(eager, 1)
        if args.compile:
            compiled = training_step(make(), batch, length, True)
            sides["PyTorch compiled"] = lambda: theirs(compiled, 1)
        llmc = None
        if args.llmc and name == "gpt2":
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "gpt2.bin")
                write_llmc_checkpoint(path)
                llmc = Ours(args.llmc, path, str(batch), str(length))
                llmc.run(name, 1)
            sides["llm.c"] = lambda: llmc.run(name, 1)
        times, roof = {side: [] for side in sides}, []
        for run in sides.values():
            run(), run()
        for _ in range(args.rounds):
            rest()
            roof += ours.run("roof", 1)
            for side, run in sides.items():
                rest()
                times[side] += run()
        if llmc:
            llmc.close()
        limit = args.threads * 1e10 / (min(roof) * 1e-3)
        mine = times["Tapestry"]
        for side, t in times.items():
            median, fastest = statistics.median(t), min(t)
            print(f"| {name}, {batch} x {length} | {side} | {median:.0f} | {fastest:.0f} | {median / statistics.median(mine):.2f} | "
                  f"{fastest / min(mine):.2f} | {operations / (fastest * 1e-3) / limit:.2f} |", flush=True)
        print(f"| {name} | the roof: {limit * 1e-9:.0f} GFLOP/s; a step: {operations * 1e-9:.0f} GFLOP | | | | | |", flush=True)
    ours.close()


if __name__ == "__main__":
    main()
