"""The models of cpu_models.py in JAX, in f32, for tools/bench_cpu.

usage: cpu_jax.py --list | THREADS

With --list prints JAX's version and the names of the works. Otherwise answers lines `NAME REPEATS` with times (turns.h).
Images are channels-last, which XLA's convolutions prefer on CPUs. A step is one compiled function.
"""
import sys

from turns import answer_turns, keep_to

if sys.argv[1] != "--list":
    keep_to(int(sys.argv[1]))  # before XLA counts the processors

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

random = np.random.default_rng(0)


def array(*shape, scale=None):
    return jnp.asarray(random.standard_normal(shape) * (scale or (np.prod(shape[:-1]) or 1) ** -0.5), jnp.float32)


def linear(inputs, outputs):
    return {"w": array(inputs, outputs), "b": jnp.zeros(outputs)}


def dense(p, x):
    return x @ p["w"] + p["b"]


def conv(x, w, stride=1, padding="VALID", groups=1):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                    feature_group_count=groups)


def batch_norm(p, x):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * (lax.rsqrt(var + 1e-5) * p["w"]) + p["b"]


def norm_params(width):
    return {"w": jnp.ones(width), "b": jnp.zeros(width)}


def max_pool(x, window, stride, padding="VALID"):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding)


def around(n):
    return [(n, n), (n, n)]


def demo():
    params = {"conv": array(3, 3, 3, 16), "bias": jnp.zeros(16), "fc": linear(30 * 30 * 16, 10)}
    return params, lambda p, x: jax.nn.softmax(dense(p["fc"], (conv(x, p["conv"]) + p["bias"]).reshape(x.shape[0], -1)))


def cnn():
    params = {"c1": array(5, 5, 1, 32), "b1": jnp.zeros(32), "c2": array(5, 5, 32, 64), "b2": jnp.zeros(64),
              "fc1": linear(1024, 512), "fc2": linear(512, 10)}

    def forward(p, x):
        h = max_pool(jax.nn.relu(conv(x, p["c1"]) + p["b1"]), 2, 2)
        h = max_pool(jax.nn.relu(conv(h, p["c2"]) + p["b2"]), 2, 2)
        return dense(p["fc2"], jax.nn.relu(dense(p["fc1"], h.reshape(h.shape[0], -1))))

    return params, forward


def layer_norm(p, x):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * p["w"] + p["b"]


def gpt(width=256, heads=8, words=96, length=128):
    params = {"words": array(words, width, scale=1), "places": array(length, width, scale=1), "ln": norm_params(width),
              "head": array(width, words),
              "blocks": [{"ln1": norm_params(width), "ln2": norm_params(width), "qkv": linear(width, 3 * width),
                          "proj": linear(width, width), "fc1": linear(width, 4 * width), "fc2": linear(4 * width, width)}
                         for _ in range(4)]}

    def attend(p, x):
        n = x.shape[0]
        q, k, v = (t.reshape(n, length, heads, -1) for t in jnp.split(dense(p["qkv"], x), 3, -1))
        return dense(p["proj"], jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(n, length, width))

    def forward(p, ids):
        x = p["words"][ids] + p["places"]
        for b in p["blocks"]:
            x = x + attend(b, layer_norm(b["ln1"], x))
            x = x + dense(b["fc2"], jax.nn.gelu(dense(b["fc1"], layer_norm(b["ln2"], x)), approximate=False))
        return (layer_norm(p["ln"], x) @ p["head"]).reshape(-1, words)

    return params, forward


def lstm(width=256):
    params = {"ih": linear(width, 4 * width), "hh": linear(width, 4 * width), "fc": linear(width, 10)}

    def forward(p, x):
        def step(state, gates):
            h, c = state
            i, f, g, o = jnp.split(gates + dense(p["hh"], h), 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((x.shape[1], width))
        return dense(p["fc"], lax.scan(step, (zeros, zeros), dense(p["ih"], x))[0][0])

    return params, forward


def resnet18():
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = []
    for a, b in zip(widths, widths[1:]):
        blocks.append({"c1": array(3, 3, a, b), "n1": norm_params(b), "c2": array(3, 3, b, b), "n2": norm_params(b)})
        if a != b:
            blocks[-1].update(cs=array(1, 1, a, b), ns=norm_params(b))
    params = {"conv": array(7, 7, 3, 64), "bn": norm_params(64), "blocks": blocks, "fc": linear(512, 10)}

    def forward(p, x):
        h = max_pool(jax.nn.relu(batch_norm(p["bn"], conv(x, p["conv"], 2, around(3)))), 3, 2, [(0, 0), *around(1), (0, 0)])
        for b in p["blocks"]:
            stride = 2 if "cs" in b else 1
            y = jax.nn.relu(batch_norm(b["n1"], conv(h, b["c1"], stride, around(1))))
            y = batch_norm(b["n2"], conv(y, b["c2"], 1, around(1)))
            h = jax.nn.relu(y + (batch_norm(b["ns"], conv(h, b["cs"], 2)) if "cs" in b else h))
        return dense(p["fc"], h.mean((1, 2)))

    return params, forward


def depthwise():
    shapes = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)]
    params = {"conv": array(3, 3, 3, 32), "bn": norm_params(32), "fc": linear(256, 10),
              "blocks": [{"depth": array(3, 3, 1, a, scale=1 / 3), "n1": norm_params(a), "point": array(1, 1, a, b),
                          "n2": norm_params(b)} for a, b, _ in shapes]}

    def forward(p, x):
        h = jax.nn.relu(batch_norm(p["bn"], conv(x, p["conv"], 1, around(1))))
        for b, (a, _, stride) in zip(p["blocks"], shapes):
            h = jax.nn.relu(batch_norm(b["n1"], conv(h, b["depth"], stride, around(1), a)))
            h = jax.nn.relu(batch_norm(b["n2"], conv(h, b["point"])))
        return dense(p["fc"], h.mean((1, 2)))

    return params, forward


def training_step(model, x, target, adam=False):
    params, forward = model()

    def loss_of(params):
        logits = forward(params, x)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, target[:, None], -1)[:, 0])

    def sgd(params, state):
        grads = jax.grad(loss_of)(params)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return jax.tree.map(lambda w, m: w - 0.01 * m, params, state), state

    def adamw(params, state):
        step, m, v = state
        grads, step = jax.grad(loss_of)(params), step + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
        scale, root = 1e-3 / (1 - 0.9 ** step), jnp.sqrt(1 - 0.999 ** step)
        return jax.tree.map(lambda w, m, v: w * (1 - 1e-5) - scale * m / (jnp.sqrt(v) / root + 1e-8), params, m, v), (step, m, v)

    zeros = jax.tree.map(jnp.zeros_like, params)
    update = jax.jit(adamw if adam else sgd, donate_argnums=(0, 1))
    # A donated array must not be passed twice.
    state = [params, (jnp.zeros(()), zeros, jax.tree.map(jnp.zeros_like, params)) if adam else zeros]

    def step():
        state[:] = update(*state)
        jax.block_until_ready(state)

    return step


WORKS = {
    "demo": lambda: training_step(demo, array(64, 32, 32, 3), random.integers(0, 10, 64)),
    "cnn": lambda: training_step(cnn, array(128, 28, 28, 1), random.integers(0, 10, 128)),
    "gpt": lambda: training_step(gpt, random.integers(0, 96, (16, 128)), random.integers(0, 96, 2048), adam=True),
    "lstm": lambda: training_step(lstm, array(64, 32, 256), random.integers(0, 10, 32)),
    "resnet18": lambda: training_step(resnet18, array(32, 64, 64, 3), random.integers(0, 10, 32)),
    "depthwise": lambda: training_step(depthwise, array(64, 32, 32, 3), random.integers(0, 10, 64)),
}

if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(jax.__version__, *WORKS)
    else:
        answer_turns(WORKS)
