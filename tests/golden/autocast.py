#!/usr/bin/env python3
"""Records what torch.autocast does, for tests/autograd/autocast_rules_test.cpp and tests/nn/autocast_train_test.cpp.

Run it with PyTorch's interpreter. autocast.txt then has these lines:

  cpu OP FIRST OTHERS RESULT   the dtype of OP's result under autocast("cpu", bfloat16), by the dtypes of its inputs
  cuda POLICY OP               the lists of autocast for GPUs, from ATen/autocast_mode.h
  train ORDER MEAN             the mean loss of the last 20 of 200 steps in bf16, by the order of the batches
"""
import math
import pathlib
import re

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
n = 4


def t(dtype, *shape):
    torch.manual_seed(1)
    return (torch.rand(*shape) * 0.5 + 0.25).to(dtype)


def square(dtype):
    a = torch.eye(n) * 2 + 0.1
    return a.to(dtype)


idx = torch.zeros(n, dtype=torch.int64)
idx2 = torch.zeros(n, n, dtype=torch.int64)
# a is the dtype of the first input, b that of the others.
OPS = {}


def op(name, fn):
    OPS[name] = fn


for name in ("acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan sqrt tanh sigmoid sin cos abs neg "
             "cumsum cumprod sum mean prod relu gelu silu softplus std var").split():
    fn = getattr(torch, name, None) or getattr(F, name)
    if name in ("cumsum", "cumprod"):
        op(name, lambda a, b, fn=fn: fn(t(a, n, n), 0))
    else:
        op(name, lambda a, b, fn=fn: fn(t(a, n, n)))
for name in "add sub mul div maximum minimum atan2 pow".split():
    op(name, lambda a, b, fn=getattr(torch, name): fn(t(a, n, n), t(b, n, n)))
op("pow/number", lambda a, b: torch.pow(t(a, n), 2))
op("softmax", lambda a, b: torch.softmax(t(a, n, n), 1))
op("log_softmax", lambda a, b: torch.log_softmax(t(a, n, n), 1))
op("logsumexp", lambda a, b: torch.logsumexp(t(a, n, n), 1))
op("norm", lambda a, b: torch.norm(t(a, n, n), 2, 1))
op("linalg.vector_norm", lambda a, b: torch.linalg.vector_norm(t(a, n, n), 2, 1))
op("linalg.matrix_norm", lambda a, b: torch.linalg.matrix_norm(t(a, n, n)))
op("normalize", lambda a, b: F.normalize(t(a, n, n)))
op("matmul", lambda a, b: torch.matmul(t(a, n, n), t(b, n, n)))
op("mm", lambda a, b: torch.mm(t(a, n, n), t(b, n, n)))
op("bmm", lambda a, b: torch.bmm(t(a, 2, n, n), t(b, 2, n, n)))
op("mv", lambda a, b: torch.mv(t(a, n, n), t(b, n)))
op("dot", lambda a, b: torch.dot(t(a, n), t(b, n)))
op("outer", lambda a, b: torch.outer(t(a, n), t(b, n)))
op("addmm", lambda a, b: torch.addmm(t(a, n, n), t(b, n, n), t(b, n, n)))
op("baddbmm", lambda a, b: torch.baddbmm(t(a, 2, n, n), t(b, 2, n, n), t(b, 2, n, n)))
op("cross", lambda a, b: torch.linalg.cross(t(a, n, 3), t(b, n, 3)))
op("einsum", lambda a, b: torch.einsum("ij,jk->ik", t(a, n, n), t(b, n, n)))
op("tensordot", lambda a, b: torch.tensordot(t(a, n, n), t(b, n, n), 1))
op("linear", lambda a, b: F.linear(t(a, n, n), t(b, n, n), t(b, n)))
op("conv1d", lambda a, b: F.conv1d(t(a, 1, 2, 5), t(b, 2, 2, 3)))
op("conv2d", lambda a, b: F.conv2d(t(a, 1, 2, 5, 5), t(b, 2, 2, 3, 3), t(b, 2)))
op("conv3d", lambda a, b: F.conv3d(t(a, 1, 2, 3, 3, 3), t(b, 2, 2, 3, 3, 3)))
op("conv_transpose1d", lambda a, b: F.conv_transpose1d(t(a, 1, 2, 5), t(b, 2, 2, 3)))
op("conv_transpose2d", lambda a, b: F.conv_transpose2d(t(a, 1, 2, 5, 5), t(b, 2, 2, 3, 3)))
op("conv_transpose3d", lambda a, b: F.conv_transpose3d(t(a, 1, 2, 3, 3, 3), t(b, 2, 2, 3, 3, 3)))
op("scaled_dot_product_attention", lambda a, b: F.scaled_dot_product_attention(t(a, 1, 2, n, n), t(b, 1, 2, n, n), t(b, 1, 2, n, n)))
op("prelu", lambda a, b: F.prelu(t(a, n, n), t(b, 1)))


def recurrent(cls):
    def run(a, b):
        torch.manual_seed(1)
        return cls(3, n).to(b)(t(a, 5, 2, 3))[0]
    return run


op("lstm", recurrent(torch.nn.LSTM))
op("gru", recurrent(torch.nn.GRU))
op("rnn_tanh", recurrent(torch.nn.RNN))
op("batch_norm", lambda a, b: F.batch_norm(t(a, n, 2), torch.zeros(2), torch.ones(2), t(b, 2), t(b, 2), True))
op("layer_norm", lambda a, b: F.layer_norm(t(a, n, n), (n,), t(b, n), t(b, n)))
op("rms_norm", lambda a, b: F.rms_norm(t(a, n, n), (n,), t(b, n)))
op("group_norm", lambda a, b: F.group_norm(t(a, 2, n, 3), 2, t(b, n), t(b, n)))
op("instance_norm", lambda a, b: F.instance_norm(t(a, 2, n, 3), weight=t(b, n), bias=t(b, n)))
op("nll_loss", lambda a, b: F.nll_loss(t(a, n, n), idx))
op("cross_entropy", lambda a, b: F.cross_entropy(t(a, n, n), idx))
for name in "mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss poisson_nll_loss".split():
    op(name, lambda a, b, fn=getattr(F, name): fn(t(a, n, n), t(b, n, n)))
op("binary_cross_entropy", lambda a, b: F.binary_cross_entropy(t(a, n), t(b, n)))
op("binary_cross_entropy_with_logits", lambda a, b: F.binary_cross_entropy_with_logits(t(a, n), t(b, n)))
op("cosine_embedding_loss", lambda a, b: F.cosine_embedding_loss(t(a, n, n), t(b, n, n), torch.ones(n)))
op("triplet_margin_loss", lambda a, b: F.triplet_margin_loss(t(a, n, n), t(b, n, n), t(b, n, n)))
op("hinge_embedding_loss", lambda a, b: F.hinge_embedding_loss(t(a, n, n), torch.ones(n, n)))
op("margin_ranking_loss", lambda a, b: F.margin_ranking_loss(t(a, n), t(b, n), torch.ones(n)))
op("cosine_similarity", lambda a, b: F.cosine_similarity(t(a, n, n), t(b, n, n)))
op("cdist", lambda a, b: torch.cdist(t(a, n, n), t(b, n, n)))
op("cat", lambda a, b: torch.cat([t(a, n), t(b, n)]))
op("stack", lambda a, b: torch.stack([t(a, n), t(b, n)]))
op("addcmul", lambda a, b: torch.addcmul(t(a, n), t(b, n), t(b, n)))
op("addcdiv", lambda a, b: torch.addcdiv(t(a, n), t(b, n), t(b, n)))
op("index_copy", lambda a, b: torch.index_copy(t(a, n), 0, idx, t(b, n)))
op("scatter_add", lambda a, b: torch.scatter_add(t(a, n), 0, idx, t(b, n)))
op("grid_sample", lambda a, b: F.grid_sample(t(a, 1, 1, n, n), t(b, 1, n, n, 2), align_corners=False))
op("interpolate", lambda a, b: F.interpolate(t(a, 1, 1, n, n), scale_factor=2, mode="bilinear"))
op("quantile", lambda a, b: torch.quantile(t(a, n), 0.5))
op("avg_pool2d", lambda a, b: F.avg_pool2d(t(a, 1, 1, n, n), 2))
op("avg_pool3d", lambda a, b: F.avg_pool3d(t(a, 1, 1, n, n, n), 2))
op("max_pool2d", lambda a, b: F.max_pool2d(t(a, 1, 1, n, n), 2))
op("max_pool3d", lambda a, b: F.max_pool3d(t(a, 1, 1, n, n, n), 2))
op("adaptive_avg_pool2d", lambda a, b: F.adaptive_avg_pool2d(t(a, 1, 1, n, n), 2))
op("adaptive_avg_pool3d", lambda a, b: F.adaptive_avg_pool3d(t(a, 1, 1, n, n, n), 2))
op("adaptive_max_pool3d", lambda a, b: F.adaptive_max_pool3d(t(a, 1, 1, n, n, n), 2))
op("embedding", lambda a, b: F.embedding(idx, t(a, n, n)))
op("dropout", lambda a, b: F.dropout(t(a, n)))
for name in "inv cholesky svdvals eigvalsh matrix_rank".split():
    op("linalg." + name, lambda a, b, fn=getattr(torch.linalg, name): fn(square(a)))
op("linalg.qr", lambda a, b: torch.linalg.qr(square(a))[0])
op("linalg.solve", lambda a, b: torch.linalg.solve(square(a), t(b, n, n)))

lines = []
f32, bf16 = torch.float32, torch.bfloat16
short = {f32: "f32", bf16: "bf16", torch.float64: "f64", torch.int64: "i64"}
for name, fn in OPS.items():
    for a in (f32, bf16):
        for b in (f32, bf16):
            try:
                with torch.autocast("cpu", bf16):
                    result = short[fn(a, b).dtype]
            except (RuntimeError, NotImplementedError):
                result = "error"
            lines.append(f"cpu {name} {short[a]} {short[b]} {result}")

header = (pathlib.Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
for policy, macro in (("low", "LOWER_PRECISION_FP"), ("f32", "FP32"), ("f32", "FP32_SET_OPT_DTYPE"), ("promote", "PROMOTE")):
    body = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*?)\n\n", header, re.S).group(1)
    for name in dict.fromkeys(re.findall(r"_\((\w+)", body)):
        lines.append(f"cuda {policy} {name}")


# 200 steps of SGD. Weights and data come from sines, so that C++ can make the same ones.
def wave(count, step, scale):
    return torch.tensor([scale * math.sin(step * (i + 1)) for i in range(count)], dtype=torch.float64).float()


def train(order):
    w1, b1 = wave(32 * 16, 0.7, 0.25).reshape(32, 16), torch.zeros(32)
    g, c = torch.ones(32), torch.zeros(32)
    w2, b2 = wave(5 * 32, 1.3, 0.2).reshape(5, 32), torch.zeros(5)
    params = [p.requires_grad_() for p in (w1, b1, g, c, w2, b2)]
    x = wave(80 * 16, 0.37, 1.0).reshape(80, 16)
    y = torch.tensor([(i * i // 3) % 5 for i in range(80)])
    losses = []
    for step in range(200):
        rows = [(step * 16 + j) * (3 + 2 * order) % 80 if (3 + 2 * order) % 5 else (step * 16 + j * 7 + order) % 80 for j in range(16)]
        with torch.autocast("cpu", bf16):
            h = F.gelu(F.layer_norm(F.linear(x[rows], w1, b1), (32,), g, c))
            loss = F.cross_entropy(F.linear(h, w2, b2), y[rows])
        for p in params:
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in params:
                p -= 0.1 * p.grad
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


for order in range(8):
    lines.append(f"train {order} {train(order):.6f}")
(HERE / "autocast.txt").write_text("\n".join(lines) + "\n")
