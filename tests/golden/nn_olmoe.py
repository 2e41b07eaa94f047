#!/usr/bin/env python3
"""Records a small OlmoeForCausalLM of transformers: its files in tests/golden/nn_olmoe/, and its logits, its loss and all
gradients in tests/golden/nn_olmoe.txt.

The files are in f32, and the results in f64 from the same weights; transformers computes the angles and the routers'
probabilities in f32. So 8 digits are kept. The lines have the format of nn.py. Running this script needs PyTorch and transformers 5;
make_all.py does not run it."""
import shutil

import torch
import torch.nn.functional as F
import transformers

from nn import HERE, formula, labels, put, write


def put_rounded(name, tensor):
    put(name, tensor.detach().clone().apply_(lambda value: float(f"{value:.8g}")))


config = transformers.OlmoeConfig(
    vocab_size=7, hidden_size=8, intermediate_size=2, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    max_position_embeddings=32, rope_theta=100.0, num_experts=3, num_experts_per_tok=2, norm_topk_prob=False,
    output_router_logits=True, router_aux_loss_coef=0.25, experts_implementation="eager", pad_token_id=None, eos_token_id=1, tie_word_embeddings=False)
torch.set_default_dtype(torch.float32)
net = transformers.OlmoeForCausalLM(config)
with torch.no_grad():
    for k, (name, p) in enumerate(net.named_parameters()):
        p.copy_(formula(p.shape, k + 1, 0.9 if p.dim() > 1 else 0.3) + (0 if p.dim() > 1 else 1))
folder = HERE / "nn_olmoe"
shutil.rmtree(folder, ignore_errors=True)
net.save_pretrained(folder)
(folder / "generation_config.json").unlink(missing_ok=True)
torch.set_default_dtype(torch.float64)
net = net.double().train()
words = labels((2, 7), 4, 7)
out = net(words[:, :-1])
put_rounded("logits", out.logits)
put_rounded("balance", out.aux_loss)
loss = F.cross_entropy(out.logits.flatten(0, 1), words[:, 1:].flatten()) + config.router_aux_loss_coef * out.aux_loss
put_rounded("loss", loss)
loss.backward()
for name, p in net.named_parameters():
    put_rounded(f"gradient/{name}", p.grad)
write("olmoe")
print("transformers", transformers.__version__, "torch", torch.__version__)
