import torch

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def run(kind, x, states, weights, batch_sizes=None, reverse=False):
    """One layer and direction by torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu."""
    ih, hh, bias_ih, bias_hh = weights
    hidden = hh.shape[1]
    batch = batch_sizes[0] if batch_sizes else x.shape[1]
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    # PyTorch reads beyond weights that are too small, and broadcasts states. Tapestry refuses both.
    for t, shape in [(ih, (gates * hidden, x.shape[-1])), (hh, (gates * hidden, hidden)), (bias_ih, (gates * hidden,)),
                     (bias_hh, (gates * hidden,))] + [(s, (batch, hidden)) for s in states]:
        if t is not None and t.shape != shape:
            raise ValueError(f"{tuple(t.shape)} is not {shape}")
    if batch_sizes and (sorted(batch_sizes, reverse=True) != batch_sizes or sum(batch_sizes) != x.shape[0]):
        raise ValueError(f"batch sizes {batch_sizes} of {x.shape[0]} rows")
    params = [ih, hh] + ([bias_ih, bias_hh] if bias_ih is not None else [])
    directions = 2 if reverse else 1
    states = [(x.new_zeros(batch, hidden) if s is None else s).expand(directions, batch, hidden) for s in states]
    hx = states if kind == "lstm" else states[0]
    settings = (bias_ih is not None, 1, 0.0, True, reverse)
    call = getattr(torch, kind)
    if batch_sizes:
        y, *ends = call(x, torch.tensor(batch_sizes), hx, params * directions, *settings)
    else:
        y, *ends = call(x, hx, params * directions, *settings, False)
    return (y[..., -hidden:], *(e[-1] for e in ends))


def lstm(x, h0, c0, ih, hh, bias_ih, bias_hh, **params):
    return run("lstm", x, [h0, c0], (ih, hh, bias_ih, bias_hh), **params)


def one_state(kind):
    return lambda x, h0, ih, hh, bias_ih, bias_hh, **params: run(kind, x, [h0], (ih, hh, bias_ih, bias_hh), **params)


FUNCTIONS = dict(lstm=(lstm, 4, 2), gru=(one_state("gru"), 3, 1), rnn_tanh=(one_state("rnn_tanh"), 1, 1),
                 rnn_relu=(one_state("rnn_relu"), 1, 1))


def fit(gates):
    """For tools/fuzz_ops: shapes of weights, states and batches that fit."""
    def change(shapes, params):
        x, *states, ih, hh, bias_ih, bias_hh = shapes
        hidden = min(hh[1], 4)
        sizes = params.get("batch_sizes")
        if sizes:
            sizes[:] = sorted((max(1, n) for n in sizes), reverse=True)
            x[0] = sum(sizes)
        for s in states:
            if s is not None:
                s[:] = [sizes[0] if sizes else x[1], hidden]
        ih[:], hh[:] = [gates * hidden, x[-1]], [gates * hidden, hidden]
        for b in (bias_ih, bias_hh):
            if b is not None:
                b[:] = [gates * hidden]
    return change


FITS = {op: fit(gates) for op, (_, gates, _) in FUNCTIONS.items()}
# Every step rounds the state, and a rounding reaches the results through all later steps. The scale of a case counts
# roundings of the inputs alone.
SLACK = 8


def recurrent(x, batch, hidden, bias=True, states=True, tags="", scale=1.0, ops=FUNCTIONS, **params):
    for op in ops:
        fn, gates, count = FUNCTIONS[op]
        width = gates * hidden
        inputs = [x]
        inputs += [grid(batch, hidden, seed=2 + k, low=-1, high=1) if states else None for k in range(count)]
        inputs += [scale * grid(width, x.shape[-1], seed=5, low=-1, high=1), scale * grid(width, hidden, seed=7, low=-1, high=1)]
        inputs += [grid(width, seed=k, low=-1, high=1) if bias else None for k in (9, 11)]
        case(op, inputs, params, fn, tags, slack=SLACK)


x = grid(3, 2, 2, low=-2, high=2)
recurrent(x, 2, 3)
recurrent(x, 2, 3, reverse=True)
recurrent(x, 2, 2, bias=False, states=False)
recurrent(grid(1, 1, 1), 1, 1)
ragged = grid(7, 2, low=-2, high=2)
recurrent(ragged, 3, 2, batch_sizes=[3, 2, 1, 1])
recurrent(ragged, 3, 2, batch_sizes=[3, 2, 1, 1], reverse=True)
recurrent(grid(3, 2), 1, 2, batch_sizes=[1, 1, 1], states=False, reverse=True, ops=["lstm", "gru"])
recurrent(torch.zeros(2, 0, 2, dtype=torch.float64), 0, 2)
recurrent(64 * grid(2, 2, 2), 2, 2, tags="extreme no_gradcheck no_grad")
recurrent(f64([[[INF], [1]], [[0.5], [NAN]], [[1], [-INF]]]), 2, 1, tags="extreme no_gradcheck no_grad")
