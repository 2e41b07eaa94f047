#!/usr/bin/env python3
"""Records logits and 20 training losses of models with PEFT's LoRA in tests/golden/nn_lora.txt, and adapters that PEFT wrote
in tests/golden/nn_lora_llama/ and nn_lora_gpt2/.

The Llama is that of nn_language.py, the GPT-2 that of transformers, whose layers are Conv1D. The lines have the format of
nn.py. Running this script needs PyTorch, transformers and PEFT; make_all.py does not run it."""
import json

import peft
import torch
import torch.nn.functional as F
import transformers

from nn import HERE, formula, labels, put, write
from nn_language import GPT2, LLAMA, Gpt2, Llama, fill


def gpt2():
    plain = Gpt2(GPT2).double()
    fill(plain)
    made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).double()
    made.load_state_dict({n: p.detach().t() if ".c_" in n and p.dim() == 2 else p.detach()
                          for n, p in plain.named_parameters()}, strict=False)
    return made


def llama():
    made = Llama(LLAMA).double()
    fill(made)
    return made


def record(name, base, **options):
    net = peft.get_peft_model(base, peft.LoraConfig(**options))
    for n, p in net.named_parameters():  # PEFT makes adapters of f32
        if p.requires_grad:
            p.data = p.data.double()
    seed = 0
    with torch.no_grad():
        for n, p in net.named_parameters():
            if "lora_" in n:
                seed += 1
                p.copy_(formula(p.shape, seed, 0.7).float())
    folder = HERE / f"nn_lora_{name}"
    net.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # PEFT writes a set, in any order
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))

    def logits(ids):
        out = net(ids)
        return getattr(out, "logits", out)

    put(f"{name}/logits", logits(labels((2, 12), 4, 29)))
    optimizer, losses = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01), []
    for step in range(20):
        words = labels((4, 13), step % 5, 29)
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    put(f"{name}/losses", torch.tensor(losses, dtype=torch.float64))
    put(f"{name}/merged", (lambda m: getattr(m(labels((2, 12), 4, 29)), "logits", None) if name == "gpt2" else
                           m(labels((2, 12), 4, 29)))(net.merge_and_unload()))


if __name__ == "__main__":
    record("llama", llama(), r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"])
    record("gpt2", gpt2(), r=3, lora_alpha=4, use_rslora=True, fan_in_fan_out=True, task_type="CAUSAL_LM",
           target_modules=r".*\.h\.\d+\.(attn|mlp)\.c_(attn|fc)")
    write("lora")
