"""Compares Tapestry's tokenizer with Hugging Face's tokenizers, for tools/bench_tokenizer.

usage: tokenizer.py TAPESTRY_PROGRAM --text FILE... [--gguf FILE] [--gpt2 VOCABULARY MERGES] [--strings N] [--rounds N] [--seed N]
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"  # before the import, which starts the threads

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from turns import cpu_name

# The patterns that Llama 3 and Qwen2 publish in their tokenizer.json.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def words_of(rule):
    if rule == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = LLAMA3 if rule == "llama3" else QWEN2
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(rule, texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=rule == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder = words_of(rule), decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def from_gguf(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens, kinds, merges = (fields["tokenizer.ggml." + n].contents() for n in ("tokens", "token_type", "merges"))
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = words_of(fields["tokenizer.ggml.pre"].contents())
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def from_gpt2(vocabulary, merges):
    pairs = [tuple(line.split()) for line in open(merges, encoding="utf-8").read().split("\n") if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocab=json.load(open(vocabulary, encoding="utf-8")), merges=pairs))
    tokenizer.pre_tokenizer, tokenizer.decoder = words_of("gpt2"), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer


def random_string(draw):
    """Characters of many scripts, digits, spaces, controls and names of control tokens."""
    kinds = [lambda: chr(draw.randrange(32, 127))] * 6 + [
        lambda: chr(draw.randrange(0xa0, 0x2fff)), lambda: chr(draw.randrange(0x3000, 0xd7ff)),
        lambda: chr(draw.randrange(0x10000, 0x1ffff)), lambda: draw.choice(" \t\n\r\u00a0\u2028\u3000\x00\x7f\x85"),
        lambda: " " * draw.randrange(1, 6), lambda: str(draw.randrange(10 ** draw.randrange(1, 9))),
        lambda: draw.choice(["'s", "'LL", "\u2019re", "'ve", "<|im_start|>", "<|endoftext|>", "<|begin_of_text|>"]),
        lambda: "".join(chr(draw.randrange(97, 123)) for _ in range(draw.randrange(1, 12)))]
    return "".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 30)))


def strings_of(texts, count, seed):
    """Half of them are pieces of the texts, the others are random."""
    draw = random.Random(seed)
    pieces = []
    while len(pieces) < count // 2:
        text = draw.choice(texts)
        begin = draw.randrange(len(text))
        pieces.append(text[begin:begin + draw.choice([20, 80, 80, 200])])
    return pieces + [random_string(draw) for _ in range(count - len(pieces))]


def ours(program, tokenizer, strings, rounds, folder):
    source, result = os.path.join(folder, "strings"), os.path.join(folder, "ids")
    with open(source, "wb") as f:
        for s in strings:
            data = s.encode()
            f.write(struct.pack("<I", len(data)) + data)
    out = subprocess.run([program, tokenizer, source, result, str(rounds)], check=True, capture_output=True, text=True).stdout
    data = open(result, "rb").read()
    numbers, ids, at = struct.unpack(f"<{len(data) // 4}I", data), [], 0
    while at < len(numbers):
        ids.append(list(numbers[at + 1:at + 1 + numbers[at]]))
        at += 1 + numbers[at]
    return min(float(t) for t in out.split()), ids


def theirs(tokenizer, strings, rounds):
    best, ids = float("inf"), None
    for encode in (tokenizer.encode_batch, tokenizer.encode_batch_fast):
        for _ in range(rounds):
            start = time.perf_counter()
            encodings = encode(strings)
            best = min(best, time.perf_counter() - start)
        ids = [e.ids for e in encodings]
    return best, ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--gpt2", nargs=2)
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    texts = [open(path, encoding="utf-8", errors="ignore", newline="").read() for path in args.text]
    texts = [t for t in texts if t]
    strings = strings_of(texts, args.strings, args.seed)
    size = sum(len(s.encode()) for s in strings)
    print(f"tokenizers {tokenizers.__version__}, one thread, {cpu_name()}; {len(strings)} strings, {size * 1e-6:.1f} MB, "
          f"seed {args.seed}")
    print("| tokenizer | strings with other ids | Tapestry MB/s | tokenizers MB/s | ratio |")
    print("|---|---|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cases = [(f"{rule}, 8,000 tokens trained here", trained(rule, texts), None) for rule in ("llama3", "qwen2", "smollm", "gpt2")]
        if args.gguf:
            cases.append((os.path.basename(args.gguf), from_gguf(args.gguf), args.gguf))
        if args.gpt2:
            cases.append(("GPT-2's vocabulary", from_gpt2(*args.gpt2), None))
        for name, tokenizer, path in cases:
            if path is None:
                path = os.path.join(folder, "tokenizer.json")
                tokenizer.save(path)
            my_time, mine = ours(args.program, path, strings, args.rounds, folder)
            their_time, other = theirs(tokenizer, strings, args.rounds)
            different = [i for i in range(len(strings)) if mine[i] != other[i]]
            for i in different[:3]:
                print(f"{name}: {strings[i]!r}: {mine[i]}, expected {other[i]}", file=sys.stderr)
            failed |= bool(different)
            print(f"| {name} | {len(different)} | {size * 1e-6 / my_time:.1f} | {size * 1e-6 / their_time:.1f} | "
                  f"{their_time / my_time:.2f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
