"""PyTorch's side of tools/bench_ops. It also starts Tapestry's side, lets both take turns, and prints the results.

usage: cpu_ops.py TAPESTRY_PROGRAM [--threads 2] [--rounds 5] [--fastest] [--ops NAME...]

--fastest prints the fastest times instead of the medians, for a machine that has other load.
"""
import argparse
import statistics

import torch
import torch.nn.functional as F

from turns import Ours, cpu_name, rest, theirs

work = {}


def training(name, leaves, f):
    for t in leaves:
        t.requires_grad_()

    def step():
        y = f()
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    work[name] = step


def elementwise():
    x, y, p = torch.randn(1000000), torch.randn(1000000), torch.rand(1000000) * 0.8 + 0.1
    big, i, j, mask = p + 1.5, torch.randint(0, 100, (1000000,)), torch.randint(1, 100, (1000000,)), x > 0
    for name in ("sin cos tan atan sinh cosh asinh erf expm1 exp2 floor ceil trunc sign frac square reciprocal isfinite isinf "
                 "round nan_to_num").split():
        work[name] = lambda f=getattr(torch, name): f(x)
    for name in "asin acos atanh erfinv log1p log2 log10".split():
        work[name] = lambda f=getattr(torch, name): f(p)
    work["acosh"] = lambda: torch.acosh(big)
    for name in "atan2 fmod remainder logical_and".split():
        work[name] = lambda f=getattr(torch, name): f(x, y)
    work["pow"] = lambda: torch.pow(p, y)
    work["floor_divide"] = lambda: torch.floor_divide(i, j)
    work["bitwise_and"] = lambda: torch.bitwise_and(i, j)
    work["logical_not"] = lambda: torch.logical_not(mask)
    work["lerp"] = lambda: torch.lerp(x, y, 0.3)
    work["addcmul"] = lambda: torch.addcmul(x, y, p, value=2)
    work["addcdiv"] = lambda: torch.addcdiv(x, y, p, value=2)
    work["masked_fill"] = lambda: torch.masked_fill(x, mask, 0)
    work["where_number"] = lambda: torch.where(mask, x, 0)
    work["cast_int8"] = lambda: x.to(torch.int8)
    small = x.to(torch.int8)
    work["cast_from_int8"] = lambda: small.float()
    for name in "mish hardswish hardsigmoid softsign logsigmoid elu softplus leaky_relu selu".split():
        work[name] = lambda f=getattr(F, name): f(x)
    m = x.reshape(1000, 1000)
    work["glu"] = lambda: F.glu(m)


def indexing():
    m, v, to = torch.randn(1000, 1000), torch.randn(1000000), torch.randint(0, 1000, (1000, 1000))
    rows, flat, mask = torch.randint(0, 1000, (1000,)), torch.randint(0, 1000000, (1000000,)), m > 0
    work["gather"] = lambda: torch.gather(m, 1, to)
    work["gather_rows"] = lambda: torch.gather(m, 0, to)
    work["scatter"] = lambda: torch.scatter(m, 1, to, m)
    work["scatter_add"] = lambda: torch.scatter_add(m, 1, to, m)
    work["scatter_add_line"] = lambda: torch.scatter_add(v, 0, flat, v)
    work["scatter_reduce_amax"] = lambda: torch.scatter_reduce(m, 1, to, m, "amax")
    work["index_select"] = lambda: torch.index_select(m, 0, rows)
    work["index_add"] = lambda: torch.index_add(m, 0, rows, m)
    work["index_tensor"] = lambda: m[rows]
    work["index_put"] = lambda: torch.index_put(m, (rows,), m)
    work["masked_select"] = lambda: torch.masked_select(m, mask)
    work["nonzero"] = lambda: torch.nonzero(m > 1.5)
    work["one_hot"] = lambda: F.one_hot(rows, 1000)
    work["sort"] = lambda: torch.sort(m, 1)
    work["sort_line"] = lambda: torch.sort(v)
    work["argsort"] = lambda: torch.argsort(m, 1)
    work["topk"] = lambda: torch.topk(m, 10, 1)
    work["kthvalue"] = lambda: torch.kthvalue(m, 500, 1)
    work["median"] = lambda: torch.median(m, 1)
    work["cumsum"] = lambda: torch.cumsum(m, 1)
    work["cumsum_columns"] = lambda: torch.cumsum(m, 0)
    work["cumprod"] = lambda: torch.cumprod(m, 1)
    work["cummax"] = lambda: torch.cummax(m, 1)
    work["unique"] = lambda: torch.unique(rows)
    work["unique_line"] = lambda: torch.unique(flat)
    ordered = torch.sort(v)[0]
    work["searchsorted"] = lambda: torch.searchsorted(ordered, m)
    work["bincount"] = lambda: torch.bincount(flat, minlength=1000000)
    p = torch.rand(1000, 1000)
    work["multinomial"] = lambda: torch.multinomial(p, 1)


def shape_and_reductions():
    m, images = torch.randn(1000, 1000), torch.randn(16, 16, 64, 64)
    tile, wide, none = torch.randn(100, 100), torch.randn(1000, 100), m > 10
    work["tril"] = lambda: torch.tril(m)
    work["flip"] = lambda: torch.flip(m, (1,))
    work["roll"] = lambda: torch.roll(m, (10, 20), (0, 1))
    work["repeat"] = lambda: tile.repeat(10, 10)
    work["repeat_interleave"] = lambda: torch.repeat_interleave(wide, 10, 1)
    work["pad_constant"] = lambda: F.pad(images, (2, 2, 2, 2))
    work["pad_reflect"] = lambda: F.pad(images, (2, 2, 2, 2), "reflect")
    work["prod"] = lambda: torch.prod(m, 1)
    work["nansum"] = lambda: torch.nansum(m)
    work["std"] = lambda: torch.std(m, 1)
    work["any"] = lambda: torch.any(none)
    work["count_nonzero"] = lambda: torch.count_nonzero(m)
    work["argmax"] = lambda: torch.argmax(m, 1)
    work["quantile"] = lambda: torch.quantile(m, 0.3, 1)
    work["norm"] = lambda: torch.linalg.vector_norm(m, 2, 1)
    work["normalize"] = lambda: F.normalize(m)
    work["cosine_similarity"] = lambda: F.cosine_similarity(m, m)
    a, b = torch.randn(500, 64), torch.randn(500, 64)
    work["cdist"] = lambda: torch.cdist(a, b)
    c, d = torch.randn(32, 128, 128), torch.randn(32, 128, 128)
    work["bmm"] = lambda: torch.bmm(c, d)
    e, f = torch.randn(1000), torch.randn(1000)
    work["outer"] = lambda: torch.outer(e, f)
    g, h = torch.randn(32, 8, 64, 32), torch.randn(32, 8, 64, 32)
    work["einsum"] = lambda: torch.einsum("bhid,bhjd->bhij", g, h)
    k, n = torch.randn(30, 30), torch.randn(30, 30)
    work["kron"] = lambda: torch.kron(k, n)


def linalg():
    a, many = torch.randn(200, 200), torch.randn(1000, 8, 8)
    spd = a @ a.T + 200 * torch.eye(200)
    work["linalg_inv"] = lambda: torch.linalg.inv(a)
    work["linalg_inv_batch"] = lambda: torch.linalg.inv(many)
    work["linalg_solve"] = lambda: torch.linalg.solve(a, a)
    work["linalg_cholesky"] = lambda: torch.linalg.cholesky(spd)
    work["linalg_qr"] = lambda: torch.linalg.qr(a)
    work["linalg_svd"] = lambda: torch.linalg.svd(a)
    work["linalg_eigh"] = lambda: torch.linalg.eigh(spd)
    work["linalg_det"] = lambda: torch.linalg.det(a)


def layers():
    images, tokens = torch.randn(16, 64, 32, 32), torch.randn(2048, 512)
    training("group_norm", [images], lambda: F.group_norm(images, 8))
    training("instance_norm", [images], lambda: F.instance_norm(images))
    training("rms_norm", [tokens], lambda: F.rms_norm(tokens, (512,)))
    q, k, v = torch.randn(4, 12, 512, 64), torch.randn(4, 12, 512, 64), torch.randn(4, 12, 512, 64)
    training("attention", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v))
    training("attention_causal", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    token = torch.randn(4, 12, 1, 64)
    work["attention_one_query"] = lambda: F.scaled_dot_product_attention(token, k.detach(), v.detach())
    line, w1 = torch.randn(16, 64, 512), torch.randn(64, 64, 3)
    training("conv1d", [line, w1], lambda: F.conv1d(line, w1, padding=1))
    volume, w3 = torch.randn(2, 16, 16, 32, 32), torch.randn(16, 16, 3, 3, 3)
    training("conv3d", [volume, w3], lambda: F.conv3d(volume, w3, padding=1))
    code, wt = torch.randn(16, 64, 16, 16), torch.randn(64, 32, 4, 4)
    training("conv_transpose2d", [code, wt], lambda: F.conv_transpose2d(code, wt, stride=2, padding=1))
    small, grid = torch.randn(16, 32, 32, 32), torch.rand(16, 32, 32, 2) * 2 - 1
    for mode in "nearest bilinear bicubic".split():
        training(f"interpolate_{mode}", [small], lambda mode=mode: F.interpolate(small, scale_factor=2, mode=mode))
    training("grid_sample", [small, grid], lambda: F.grid_sample(small, grid, align_corners=False))
    plane, columns = torch.randn(16, 16, 64, 64), torch.randn(16, 144, 4096)
    training("unfold", [plane], lambda: F.unfold(plane, 3, padding=1))
    training("fold", [columns], lambda: F.fold(columns, 64, 3, padding=1))
    training("max_pool3d", [volume], lambda: F.max_pool3d(volume, 2))
    training("avg_pool1d", [line], lambda: F.avg_pool1d(line, 2))
    half, at = F.max_pool2d(plane.detach(), 2, return_indices=True)
    training("max_unpool2d", [half], lambda: F.max_unpool2d(half, at, 2))
    table, bags = torch.randn(10000, 64), torch.randint(0, 10000, (1000, 20))
    training("embedding_bag", [table], lambda: F.embedding_bag(bags, table))
    sequence, lstm, gru = torch.randn(128, 32, 256), torch.nn.LSTM(256, 256), torch.nn.GRU(256, 256)
    rnn = torch.nn.RNN(256, 256)
    training("rnn", list(rnn.parameters()), lambda: rnn(sequence)[0])
    training("lstm", list(lstm.parameters()), lambda: lstm(sequence)[0])
    training("gru", list(gru.parameters()), lambda: gru(sequence)[0])


def losses():
    x, t, p = torch.randn(1000, 1000), torch.rand(1000, 1000), torch.rand(1000, 1000) * 0.8 + 0.1
    classes = torch.softmax(t, 1)
    training("l1_loss", [x], lambda: F.l1_loss(x, t))
    training("smooth_l1_loss", [x], lambda: F.smooth_l1_loss(x, t))
    training("huber_loss", [x], lambda: F.huber_loss(x, t))
    training("bce", [p], lambda: F.binary_cross_entropy(p, t))
    training("bce_with_logits", [x], lambda: F.binary_cross_entropy_with_logits(x, t))
    training("kl_div", [x], lambda: F.kl_div(x, t))
    training("cross_entropy_probabilities", [x], lambda: F.cross_entropy(x, classes))
    hidden, output, words = torch.randn(256, 256), torch.randn(16384, 256), torch.randint(0, 16384, (256,))
    training("linear_cross_entropy", [hidden, output], lambda: F.cross_entropy(F.linear(hidden, output), words))
    steps, labels = torch.log_softmax(torch.randn(50, 16, 20), 2), torch.randint(1, 20, (16, 10))
    inputs, outputs = torch.full((16,), 50), torch.full((16,), 10)
    training("ctc_loss", [steps], lambda: F.ctc_loss(steps, labels, inputs, outputs))


def optimizers():
    """A step with one parameter of a million elements."""
    for name in "RMSprop Adagrad Adamax NAdam RAdam".split():
        p = torch.nn.Parameter(torch.randn(1000000))
        p.grad = torch.randn(1000000)
        work[name.lower()] = getattr(torch.optim, name)([p]).step


def basics():
    """What models call in every step."""
    x, y, m = torch.randn(1000000), torch.randn(1000000), torch.randn(1000, 1000)
    work["add"] = lambda: x + y
    work["mul"] = lambda: x * y
    work["exp"] = lambda: torch.exp(x)
    work["transpose_copy"] = lambda: m.t().contiguous()
    work["sum"] = lambda: torch.sum(m, 1)
    work["sum_columns"] = lambda: torch.sum(m, 0)
    work["mean"] = lambda: torch.mean(m)
    work["max_rows"] = lambda: torch.amax(m, 1)
    work["cat"] = lambda: torch.cat([m, m], 1)
    for name in "gelu silu relu sigmoid tanh".split():
        f = getattr(F, name) if hasattr(F, name) else getattr(torch, name)
        work[name] = lambda f=f: f(x.detach())
        leaf = torch.randn(1000000)
        training(f"{name}_backward", [leaf], lambda f=f, t=leaf: f(t))
    leaf = torch.randn(1000000)
    training("gelu_tanh_backward", [leaf], lambda: F.gelu(leaf, approximate="tanh"))
    scores, tokens = torch.randn(1000, 1000), torch.randn(2048, 512)
    training("softmax", [scores], lambda: F.softmax(scores, 1))
    training("log_softmax", [scores], lambda: F.log_softmax(scores, 1))
    weight, bias = torch.ones(512), torch.zeros(512)
    training("layer_norm", [tokens, weight, bias], lambda: F.layer_norm(tokens, (512,), weight, bias))
    images, scale, shift = torch.randn(16, 64, 32, 32), torch.ones(64), torch.zeros(64)
    training("batch_norm", [images, scale, shift], lambda: F.batch_norm(images, None, None, scale, shift, True))
    training("max_pool2d", [images], lambda: F.max_pool2d(images, 2))
    training("avg_pool2d", [images], lambda: F.avg_pool2d(images, 2))
    training("adaptive_avg_pool2d", [images], lambda: F.adaptive_avg_pool2d(images, 1))
    work["adaptive_avg_pool2d_forward"] = lambda: F.adaptive_avg_pool2d(images.detach(), 1)
    square, depth, point = torch.randn(64, 64, 3, 3), torch.randn(64, 1, 3, 3), torch.randn(64, 64, 1, 1)
    training("conv2d", [images, square], lambda: F.conv2d(images, square, padding=1))
    training("conv2d_strided", [images, square], lambda: F.conv2d(images, square, stride=2, padding=1))
    training("conv2d_dilated", [images, square], lambda: F.conv2d(images, square, padding=2, dilation=2))
    training("conv2d_point", [images, point], lambda: F.conv2d(images, point))
    training("conv2d_depthwise", [images, depth], lambda: F.conv2d(images, depth, padding=1, groups=64))
    training("conv2d_depthwise_strided", [images, depth], lambda: F.conv2d(images, depth, stride=2, padding=1, groups=64))
    deep, window = torch.randn(32, 512, 2, 2), torch.randn(512, 512, 3, 3)
    training("conv2d_small", [deep, window], lambda: F.conv2d(deep, window, padding=1))
    small = torch.randn(16, 32, 32, 32)
    training("upsample_expand", [small], lambda: small[:, :, :, None, :, None].expand(16, 32, 32, 2, 32, 2).reshape(16, 32, 64, 64))
    rows, w1, b1 = torch.randn(2048, 256), torch.randn(1024, 256), torch.randn(1024)
    training("linear", [rows, w1, b1], lambda: F.linear(rows, w1, b1))
    table, ids = torch.randn(10000, 256), torch.randint(0, 10000, (4096,))
    training("embedding", [table], lambda: F.embedding(ids, table))
    logits, classes = torch.randn(2048, 1000), torch.randint(0, 1000, (2048,))
    training("cross_entropy", [logits], lambda: F.cross_entropy(logits, classes))
    for name in ("SGD", "AdamW"):
        p = torch.nn.Parameter(torch.randn(1000000))
        p.grad = torch.randn(1000000)
        work[name.lower()] = getattr(torch.optim, name)([p], lr=1e-3, fused=True).step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fastest", action="store_true")
    parser.add_argument("--ops", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for group in (elementwise, indexing, shape_and_reductions, linalg, layers, losses, optimizers, basics):
        group()
    ours = Ours(args.program, args.threads)
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {cpu_name()}, {args.rounds} interleaved rounds, "
          f"{'fastest' if args.fastest else 'median'} times")
    print("| operation | Tapestry ms | PyTorch ms | ratio |\n|---|---|---|---|", flush=True)
    for name in args.ops or work:
        once = max(ours.run(name, 2)[1], theirs(work[name], 2)[1])
        repeats = min(50, max(3, int(30 / once)))
        mine, peers = [], []
        for _ in range(args.rounds):
            rest()
            mine += ours.run(name, repeats)
            rest()
            peers += theirs(work[name], repeats)
        pick = min if args.fastest else statistics.median
        a, b = pick(mine), pick(peers)
        print(f"| {name} | {a:.3f} | {b:.3f} | {b / a:.2f} |", flush=True)
    ours.close()


if __name__ == "__main__":
    main()
