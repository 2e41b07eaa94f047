"""The other sides of tools/bench_generate: answers lines `NAME REPEATS` as turns.h does.

usage: generate_peer.py llama|transformers MODEL.gguf THREADS PROMPT_TOKENS
"""
import os
import sys

from turns import theirs

KIND, MODEL, THREADS, PROMPT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
DECODED = 32


def tokens(count, words):
    return [(i * 7919 + 13) % words for i in range(count)]


def llama():
    from llama_cpp import Llama
    model = Llama(MODEL, n_ctx=max(PROMPT, 96), n_batch=PROMPT, n_ubatch=PROMPT, n_threads=THREADS,
                  n_threads_batch=THREADS, verbose=False)
    prompt, start = tokens(PROMPT, model.n_vocab()), tokens(32, model.n_vocab())

    def prefill():
        model.reset()
        model._ctx.kv_cache_clear()
        model.eval(prompt)

    def begin():
        model.reset()
        model._ctx.kv_cache_clear()
        model.eval(start)

    def decode():
        word = 42
        for _ in range(DECODED):
            model.eval([word])
            word = int(model._scores[-1].argmax())

    return prefill, begin, decode


def transformers():
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    folder, file = os.path.split(MODEL)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    words = model.config.vocab_size
    prompt, start = torch.tensor([tokens(PROMPT, words)]), torch.tensor([tokens(32, words)])
    state = {}

    def prefill():
        model(prompt, past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)

    def begin():
        state["cache"] = DynamicCache(config=model.config)
        model(start, past_key_values=state["cache"], use_cache=True, logits_to_keep=1)

    def decode():
        word = torch.tensor([[42]])
        for _ in range(DECODED):
            word = model(word, past_key_values=state["cache"], use_cache=True).logits[:, -1:].argmax(-1)

    return prefill, begin, decode


prefill, begin, decode = {"llama": llama, "transformers": transformers}[KIND]()
for line in sys.stdin:
    name, repeats = line.split()
    times = []
    for _ in range(int(repeats)):
        if name == "decode":
            begin()
        times += theirs({"prefill": prefill, "decode": decode}[name], 1)
    print(*(f"{t:.6f}" for t in times), flush=True)
