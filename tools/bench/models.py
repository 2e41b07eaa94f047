"""PyTorch versions of the models in models.h."""
import torch
from torch import nn
from torch.nn import functional as F


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


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        n, length, width = x.shape
        q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(n, length, width))

    def forward(self, x):
        h = x + self.attend(self.ln1(x))
        return h + self.fc2(F.gelu(self.fc1(self.ln2(h))))


class Gpt(nn.Module):
    WORDS, LENGTH, HEADS = 96, 128, 8

    def __init__(self, width=256, blocks=4):
        super().__init__()
        self.words, self.places = nn.Embedding(self.WORDS, width), nn.Embedding(self.LENGTH, width)
        self.blocks = nn.ModuleList(GptBlock(width, self.HEADS) for _ in range(blocks))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, self.WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x)).view(-1, self.WORDS)
