"""Runs tools/compare_logits: compares logits and greedy words with transformers, and perplexities.

usage: compare_logits.py PROGRAM MODEL.gguf TEXT [--tokens 4096] [--threads 2]
"""
import argparse
import os
import subprocess
import tempfile

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n", "In the beginning",
    "Water boils at a temperature of", "The three laws of motion say that", "1, 2, 4, 8, 16,", "Dear Sir or Madam,",
    "The quick brown fox jumps over", "To be, or not to be, that is", "import numpy as np\n\nx =",
    "Photosynthesis is the process by which", "My favourite book is", "La capitale de l'Allemagne est",
    "Q: What is the largest planet?\nA:", "<|im_start|>user\nWrite a haiku.<|im_end|>\n<|im_start|>assistant\n",
    "The stock market fell today because", "A recipe for bread: take", "Der schnelle braune Fuchs",
    "Machine learning is a field of study in artificial intelligence concerned with the development and study of",
]


class Side:
    def __init__(self, program, threads, model, kind):
        self.process = subprocess.Popen([program, threads, "compare", kind], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, env=dict(os.environ, TAPESTRY_BENCH_MODEL=model))

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def logits(self, ids, words):
        with tempfile.NamedTemporaryFile() as file:
            self.ask(f"logits {file.name} " + " ".join(map(str, ids)))
            return numpy.fromfile(file.name, dtype=numpy.float32).reshape(len(ids), words)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    torch.set_num_threads(int(args.threads))
    torch.set_grad_enabled(False)
    folder, file = os.path.split(args.model)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    f32 = Side(args.program, args.threads, args.model, "f32")
    packed = Side(args.program, args.threads, args.model, "packed")
    words = model.config.vocab_size
    worst, worst_packed, size, same, same_packed = 0.0, 0.0, 0.0, 0, 0
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        theirs = model(torch.tensor([ids])).logits[0].numpy()
        worst = max(worst, abs(f32.logits(ids, words) - theirs).max())
        worst_packed = max(worst_packed, abs(packed.logits(ids, words) - theirs).max())
        size = max(size, abs(theirs).max())
        greedy = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None,
                                pad_token_id=0)[0].tolist()[len(ids):]
        line = "greedy 64 " + " ".join(map(str, ids))
        same += [int(t) for t in f32.ask(line)] == greedy
        same_packed += [int(t) for t in packed.ask(line)] == greedy
    print(f"largest difference of the logits of {len(PROMPTS)} prompts (magnitudes up to {size:.1f}): f32 {worst:.2e}, "
          f"packed {worst_packed:.2e}")
    print(f"prompts whose 64 greedy words are those of transformers: f32 {same}, packed {same_packed} of {len(PROMPTS)}")
    dense, blocks = (float(s.ask(f"perplexity {args.text} {args.tokens}")[0]) for s in (f32, packed))
    print(f"perplexity of {args.tokens} tokens: f32 {dense:.4f}, packed {blocks:.4f}, {100 * (blocks / dense - 1):+.3f}%")


main()
