"""The models of models.h in PyTorch."""
import torch
from torch import nn


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc2 = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x):
        h = torch.max_pool2d(self.conv1(x).relu(), 2)
        h = torch.max_pool2d(self.conv2(h).relu(), 2)
        return self.fc2(self.fc1(h.flatten(1)).relu())


class WideMlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                         nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
