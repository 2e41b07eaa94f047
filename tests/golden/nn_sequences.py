#!/usr/bin/env python3
"""Records PyTorch's recurrent and Transformer layers in tests/golden/nn_recurrent.txt and nn_transformer.txt.

The lines have the format of nn.py, which has the helpers. Running this script needs PyTorch; make_all.py does not run it.
Arguments such as `recurrent` select parts."""
import functools
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import nn as shared
from nn import fill, formula, write


def put(name, tensor):
    """shared.put() with 14 digits, which the tolerance of the tests needs, instead of all."""
    t = tensor.detach()
    values = " ".join(f"{v:.14g}" for v in t.reshape(-1).tolist())
    shared.lines.append(f"{name} {' '.join(map(str, t.shape))} | {values}")


def flat(values):
    for v in values:
        if isinstance(v, (tuple, list)):
            yield from flat(v)
        elif v is not None:
            yield v


def record(label, module, inputs, fn=None, train=True):
    """Records the names and shapes of the state, the results of fn(*inputs), and all gradients."""
    fill(module)
    module.zero_grad()
    module.train(train)
    for k, (name, t) in enumerate(module.state_dict().items()):
        put(f"{label}/state/{k}/{name}", torch.tensor(t.shape, dtype=torch.int64))
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    ys = list(flat([(fn or module)(*leaves)]))
    sum((t * formula(t.shape, 100 + k)).sum() for k, t in enumerate(ys)).backward()
    for k, t in enumerate(ys):
        put(f"{label}/output/{k}", t)
    for k, x in enumerate(leaves):
        if x.grad is not None:
            put(f"{label}/input_grad/{k}", x.grad)
    for name, p in module.named_parameters():
        put(f"{label}/grad/{name}", p.grad)


def recurrent():
    x = formula((4, 3, 4), 50, 4.0)  # T, N, I
    swapped = x.transpose(0, 1).contiguous()
    layers = dict(lstm=nn.LSTM, gru=nn.GRU, rnn=nn.RNN, lstm_proj=functools.partial(nn.LSTM, proj_size=2))

    def states(kind, layers):
        size = 2 if kind == "lstm_proj" else 3
        h, c = formula((layers, 3, size), 51, 2.0), formula((layers, 3, 3), 52, 2.0)
        return [h, c] if kind.startswith("lstm") else [h]

    def with_states(module, kind):
        return lambda x, *s: module(x, tuple(s) if kind.startswith("lstm") else s[0])

    def ragged(module, lengths, batch_first, sort):
        def call(x, *s):
            packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=sort)
            y, ends = module(packed, (tuple(s) if len(s) == 2 else s[0]) if s else None)
            return [pad_packed_sequence(y, batch_first=batch_first, padding_value=0.25)[0], ends]
        return call

    for kind, layer in layers.items():
        record(kind, layer(4, 3), [x])
        record(f"{kind}_states", (m := layer(4, 3)), [x] + states(kind, 1), with_states(m, kind))
        record(f"{kind}_deep", (m := layer(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
               [swapped] + states(kind, 4), with_states(m, kind))
        record(f"{kind}_unbatched", layer(4, 3, num_layers=2), [x[:, 1]])
        record(f"{kind}_no_bias", layer(4, 3, bias=False, bidirectional=True), [x])
        record(f"{kind}_sorted", (m := layer(4, 3, bidirectional=True)), [x], ragged(m, [4, 2, 1], False, True))
        record(f"{kind}_ragged", (m := layer(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
               [swapped] + states(kind, 4), ragged(m, [2, 3, 1], True, False))
    record("rnn_relu", nn.RNN(4, 3, nonlinearity="relu", num_layers=2), [x])

    h, c = formula((3, 3), 53, 2.0), formula((3, 3), 54, 2.0)
    record("lstm_cell", (m := nn.LSTMCell(4, 3)), [x[0], h, c], lambda x, h, c: m(x, (h, c)))
    record("lstm_cell_unbatched", nn.LSTMCell(4, 3), [x[0, 0]])
    record("gru_cell", nn.GRUCell(4, 3), [x[0], h])
    record("gru_cell_no_bias", nn.GRUCell(4, 3, bias=False), [x[0]])
    record("rnn_cell", nn.RNNCell(4, 3), [x[0], h])
    record("rnn_cell_relu", nn.RNNCell(4, 3, nonlinearity="relu"), [x[0, 0], h[0]])
    write("recurrent")


def transformer():
    x = formula((4, 3, 4), 60, 2.0)  # S, N, E
    memory = formula((5, 3, 4), 61, 2.0)
    causal = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    added = formula((4, 4), 62, 3.0)
    padding = torch.tensor([[False, False, False, True], [False, False, False, False], [False, False, True, True]])
    swapped = x.transpose(0, 1).contiguous()
    common = dict(d_model=4, nhead=2, dim_feedforward=6, dropout=0.0)

    def encoder_layer(label, inputs, how=None, **options):
        m = nn.TransformerEncoderLayer(**common, **options)
        record(f"encoder_layer_{label}", m, inputs, lambda x: m(x, **(how or {})))

    encoder_layer("plain", [x])
    encoder_layer("norm_first", [x], norm_first=True, activation="gelu")
    encoder_layer("masks", [swapped], dict(src_mask=causal, src_key_padding_mask=padding), batch_first=True,
                  activation="gelu")
    encoder_layer("added", [x], dict(src_mask=added), norm_first=True, bias=False, layer_norm_eps=1e-3)
    encoder_layer("unbatched", [x[:, 0]], dict(src_mask=causal))
    for final in (False, True):
        m = nn.TransformerEncoder(nn.TransformerEncoderLayer(**common, batch_first=True, norm_first=final), 2,
                                  norm=nn.LayerNorm(4) if final else None, enable_nested_tensor=False)
        record(f"encoder{'_norm' if final else ''}", m, [swapped],
               lambda x: m(x, mask=causal, src_key_padding_mask=padding))

    def decoder_layer(label, inputs, how=None, **options):
        m = nn.TransformerDecoderLayer(**common, **options)
        record(f"decoder_layer_{label}", m, inputs, lambda x, y: m(x, y, **(how or {})))

    to_memory = torch.tensor([[False, False, True, False, True], [False] * 5, [True, False, False, False, False]])
    decoder_layer("plain", [x, memory])
    decoder_layer("masks", [swapped, memory.transpose(0, 1).contiguous()],
                  dict(tgt_mask=causal, memory_mask=formula((4, 5), 63), memory_key_padding_mask=to_memory.double() * -3,
                       tgt_key_padding_mask=padding), batch_first=True, norm_first=True, activation="gelu")
    m = nn.TransformerDecoder(nn.TransformerDecoderLayer(**common), 2, norm=nn.LayerNorm(4))
    record("decoder", m, [x, memory], lambda x, y: m(x, y, tgt_mask=causal))

    # MultiheadAttention with the options that nn.py does not record.
    q, k, v = formula((3, 2, 4), 64, 2.0), formula((5, 2, 4), 65, 2.0), formula((5, 2, 4), 66, 2.0)
    hidden = torch.tensor([[False, False, True, False, True], [False, True, False, False, False]])
    for label, options in dict(bias_kv=dict(add_bias_kv=True), zero_attn=dict(add_zero_attn=True),
                               bias_and_zero=dict(add_bias_kv=True, add_zero_attn=True)).items():
        m = nn.MultiheadAttention(4, 2, **options)
        record(f"mha_{label}", m, [q, k, v])
        record(f"mha_{label}_masks", m, [q, k, v],
               lambda q, k, v: m(q, k, v, key_padding_mask=hidden, attn_mask=formula((3, 5), 67, 3.0)))
    write("transformer")


if __name__ == "__main__":
    parts = dict(recurrent=recurrent, transformer=transformer)
    for part in sys.argv[1:] or parts:
        parts[part]()
