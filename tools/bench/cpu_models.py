"""PyTorch versions of the models in cpu_models.h, and the work of a training step."""
import torch
from torch import nn
from torch.nn import functional as F

from models import GptBlock


class Demo(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(30 * 30 * 16, 10)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).softmax(1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(256, 256), nn.Linear(256, 10)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][-1])


class ResNetBlock(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if stride == 1 else nn.Sequential(
            nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.blocks = nn.Sequential(*(ResNetBlock(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.blocks(h), 1).flatten(1))


class DepthwiseBlock(nn.Sequential):
    def __init__(self, width, out, stride):
        super().__init__(nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.blocks = nn.Sequential(DepthwiseBlock(32, 64, 1), DepthwiseBlock(64, 128, 2), DepthwiseBlock(128, 128, 1),
                                    DepthwiseBlock(128, 256, 2))
        self.fc = nn.Linear(256, 10)

    def forward(self, x):
        h = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


def step_gflop(model, x):
    """The multiplications and additions of a training step's products, in 10^9: forward, and the gradients of inputs that
    need one and of weights. Attention counts the scores below the diagonal once forward and twice backward."""
    total = 0

    def hook(module, args, out):
        nonlocal total
        if isinstance(module, nn.Linear):
            once = 2 * out.numel() * module.in_features
        elif isinstance(module, nn.Conv2d):
            once = 2 * out.numel() * module.weight[0].numel()
        elif isinstance(module, nn.LSTM):
            rows = args[0].shape[0] * args[0].shape[1]
            total += 3 * 2 * rows * module.weight_hh_l0.numel()  # the states need gradients in any case
            once = 2 * rows * module.weight_ih_l0.numel()
        else:  # GptBlock: q k^T and the weights' product with v, of length (length + 1) / 2 pairs
            n, length, width = args[0].shape
            total += 3 * 2 * n * width * length * (length + 1)
            return
        total += once * (3 if args[0].requires_grad else 2)

    kinds = (nn.Linear, nn.Conv2d, nn.LSTM, GptBlock)
    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, kinds)]
    model(x)
    for h in handles:
        h.remove()
    return total / 1e9
