"""Writes two files that tests/nn/checkpoint_test.cpp reads. nn_checkpoint.safetensors is a model that PyTorch saved.
nn_checkpoint_io.safetensors contains an input and the model's output for it in evaluation mode."""
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))

    def forward(self, x):
        return self.blocks(torch.relu(self.bn(self.conv(x))).flatten(1))


torch.manual_seed(0)
net = Net()
x = torch.randn(5, 2, 6, 6)
net(x)  # one training pass, so that the running statistics differ from their initial values
net.eval()
here = pathlib.Path(__file__)
save_file(net.state_dict(), here.with_suffix(".safetensors"), {"format": "pt"})
with torch.no_grad():
    save_file({"x": x, "y": net(x)}, here.with_name("nn_checkpoint_io.safetensors"))
