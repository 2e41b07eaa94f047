#!/usr/bin/env python3
"""Records logits and 50 training losses of small language models in tests/golden/nn_language.txt.

The models are written here in plain PyTorch, with the parameter names of Hugging Face's transformers. GPT-2's projections
are nn.Linear, as in Tapestry; Hugging Face's Conv1D has the transposed weight. The lines have the format of nn.py, which
has the helpers. Running this script needs PyTorch; make_all.py does not run it.

With the argument `check`, it compares the models with transformers (which must be installed) and records nothing."""
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from nn import formula, labels, put, write

LLAMA = dict(vocab_size=29, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-5, rope_theta=100.0,
             tie_word_embeddings=True, attention_bias=False)
# Frequencies in all three bands of Llama 3's scaling, heads wider than hidden_size / heads, and Qwen2's biases.
SCALING = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SCALED = dict(LLAMA, head_dim=8, num_key_value_heads=1, tie_word_embeddings=False, attention_bias=True, scaling=SCALING)
GPT2 = dict(vocab_size=29, n_positions=16, n_embd=24, n_layer=2, n_head=4, n_inner=72, layer_norm_epsilon=1e-5)


def frequencies(c):
    """Those of modeling_rope_utils.py in transformers."""
    f = c["rope_theta"] ** -(torch.arange(0, c["head_dim"], 2, dtype=torch.float64) / c["head_dim"])
    s = c.get("scaling")
    if s is None:
        return f
    length = 2 * math.pi / f
    original, low, high = s["original_max_position_embeddings"], s["low_freq_factor"], s["high_freq_factor"]
    smooth = (original / length - low) / (high - low)
    between = (1 - smooth) * f / s["factor"] + smooth * f
    return torch.where(length > original / low, f / s["factor"], torch.where(length < original / high, f, between))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, width, bias = c, c["head_dim"], c["attention_bias"]
        self.q_proj = nn.Linear(c["hidden_size"], c["num_attention_heads"] * width, bias=bias)
        self.k_proj = nn.Linear(c["hidden_size"], c["num_key_value_heads"] * width, bias=bias)
        self.v_proj = nn.Linear(c["hidden_size"], c["num_key_value_heads"] * width, bias=bias)
        self.o_proj = nn.Linear(c["num_attention_heads"] * width, c["hidden_size"], bias=False)

    def forward(self, x):
        def heads(t):
            return t.unflatten(-1, (-1, self.c["head_dim"])).transpose(1, 2)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies(self.c)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = rotate(heads(self.q_proj(x)), cos, sin), rotate(heads(self.k_proj(x)), cos, sin)
        groups = self.c["num_attention_heads"] // self.c["num_key_value_heads"]
        k, v = (t.repeat_interleave(groups, 1) for t in (k, heads(self.v_proj(x))))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        if not c["tie_word_embeddings"]:
            self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        head = self.lm_head if hasattr(self, "lm_head") else self.model.embed_tokens
        return F.linear(self.model.norm(x), head.weight)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        n = c["n_embd"]
        self.heads = c["n_head"]
        self.ln_1 = nn.LayerNorm(n, eps=c["layer_norm_epsilon"])
        self.attn = nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.ln_2 = nn.LayerNorm(n, eps=c["layer_norm_epsilon"])
        self.mlp = nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(n, c["n_inner"]), nn.Linear(c["n_inner"], n)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.attn.c_attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.attn.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, c):
        super().__init__()
        t = self.transformer = nn.Module()
        t.wte, t.wpe = nn.Embedding(c["vocab_size"], c["n_embd"]), nn.Embedding(c["n_positions"], c["n_embd"])
        t.h = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        t.ln_f = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])

    def forward(self, ids):
        t = self.transformer
        x = t.wte(ids) + t.wpe(torch.arange(ids.shape[1]))
        for block in t.h:
            x = block(x)
        return F.linear(t.ln_f(x), t.wte.weight)


def fill(net):
    """The weights of tests/nn/language_models_test.cpp, in the order of named_parameters()."""
    with torch.no_grad():
        for k, (name, p) in enumerate(net.named_parameters()):
            matrix = p.dim() > 1
            values = formula(p.shape, k + 1, 3.0 / p.shape[1] ** 0.5 if matrix else 0.2)
            p.copy_(values + (0 if matrix or not name.endswith("weight") else 1))


def record(label, make, dtype, optimizer):
    net = make().to(dtype)
    fill(net)
    for k, (name, p) in enumerate(net.named_parameters()):
        put(f"{label}/parameter/{k}/{name}", torch.tensor(p.shape, dtype=torch.int64))
    ids = labels((2, 12), 4, 29)
    put(f"{label}/logits", net(ids).double())
    optimizer, losses = optimizer(net.parameters()), []
    for step in range(50):
        words = labels((4, 13), step % 5, 29)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    put(f"{label}/losses", torch.tensor(losses, dtype=torch.float64))


def check():
    import transformers
    def llama(c):
        extra = dict(c)
        s = extra.pop("scaling", None)
        if s:
            extra["rope_scaling"] = dict(s, rope_type="llama3")
        if c["attention_bias"]:
            extra.pop("attention_bias")
        made = (transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**extra)) if c["attention_bias"] else
                transformers.LlamaForCausalLM(transformers.LlamaConfig(**extra)))
        print(type(made).__name__, getattr(made.config, "rope_parameters", None))
        return made
    for name, ours, theirs in (("llama", Llama(LLAMA), llama(LLAMA)), ("scaled", Llama(SCALED), llama(SCALED)),
                               ("gpt2", Gpt2(GPT2), transformers.GPT2LMHeadModel(transformers.GPT2Config(
                                   **GPT2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)))):
        ours, theirs = ours.double(), theirs.double().eval()
        fill(ours)
        names = [n for n, _ in theirs.named_parameters()]
        assert names == [n for n, _ in ours.named_parameters()], names
        state = {n: p.detach().t() if name == "gpt2" and ".c_" in n and p.dim() == 2 else p.detach()
                 for n, p in ours.named_parameters()}
        theirs.load_state_dict(state, strict=False)
        ids = labels((2, 12), 4, 29)
        with torch.no_grad():
            difference = (ours(ids) - theirs(ids).logits).abs().max().item()
        print(name, "differs from transformers", transformers.__version__, "by", difference)
        assert difference < 1e-5  # transformers computes the angles in f32


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
    else:
        adamw = lambda p: torch.optim.AdamW(p, lr=0.003)  # noqa: E731
        sgd = lambda p: torch.optim.SGD(p, lr=0.05)  # noqa: E731
        for name, make in (("llama", lambda: Llama(LLAMA)), ("scaled", lambda: Llama(SCALED)), ("gpt2", lambda: Gpt2(GPT2))):
            record(f"{name}_f64", make, torch.float64, adamw)
            record(f"{name}_f32", make, torch.float32, sgd)
        write("language")
