#!/usr/bin/env python3
"""Records PyTorch's normalisation layers and parametrizations in tests/golden/nn_norms.txt.

The lines have the format of nn.py, which has the helpers. Running this script needs PyTorch; make_all.py does not run it."""
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from nn import formula, layer, write

x, line, image = formula((4, 5), 50), formula((3, 4, 5), 54), formula((2, 4, 5, 6), 51, 2.0)
volume = formula((2, 4, 3, 2, 3), 55, 2.0)

layer("rms", nn.RMSNorm(5), x)
layer("rms_eps", nn.RMSNorm((5, 6), eps=1e-3), image)
layer("rms_no_affine", nn.RMSNorm(5, elementwise_affine=False), x)
layer("group", nn.GroupNorm(2, 4), image)
layer("group_one", nn.GroupNorm(1, 4, eps=1e-3), line)
layer("group_no_affine", nn.GroupNorm(4, 4, affine=False), volume)
layer("lrn_line", nn.LocalResponseNorm(2, alpha=0.5, k=2.0), line)
layer("lrn_image", nn.LocalResponseNorm(3, alpha=0.3, beta=0.5), image)
layer("lrn_volume", nn.LocalResponseNorm(11, alpha=2.0), volume)  # more neighbours than channels
for mode in (True, False):
    m = "train" if mode else "eval"
    layer(f"bn3d_{m}", nn.BatchNorm3d(4), volume, train=mode, calls=2)
    for dims, t, kind in ((1, line, nn.InstanceNorm1d), (2, image, nn.InstanceNorm2d), (3, volume, nn.InstanceNorm3d)):
        layer(f"instance{dims}d_{m}", kind(4), t, train=mode)
        layer(f"instance{dims}d_track_{m}", kind(4, momentum=0.3, affine=True, track_running_stats=True), t, train=mode,
              calls=2)
        layer(f"instance{dims}d_unbatched_{m}", kind(4, eps=1e-3, affine=True), t[0], train=mode)
    layer(f"spectral_linear_{m}", spectral_norm(nn.Linear(5, 3)), x, train=mode, calls=2)
    layer(f"spectral_conv_{m}", spectral_norm(nn.Conv2d(4, 3, 2, bias=False), n_power_iterations=3), image, train=mode)
    layer(f"spectral_dim_{m}", spectral_norm(nn.Conv2d(4, 3, 2), dim=1, eps=1e-6), image, train=mode)
    layer(f"weight_then_spectral_{m}", spectral_norm(weight_norm(nn.Linear(5, 3))), x, train=mode, calls=2)
    layer(f"spectral_bias_{m}", spectral_norm(nn.Linear(5, 3), "bias"), x, train=mode)
layer("weight_linear", weight_norm(nn.Linear(5, 3)), x, calls=2)
layer("weight_conv", weight_norm(nn.Conv2d(4, 3, 2)), image)
layer("weight_dim", weight_norm(nn.Conv2d(4, 3, 2), dim=1), image)
layer("weight_whole", weight_norm(nn.Linear(5, 3), dim=None), x)
layer("weight_bias", weight_norm(nn.Linear(5, 3), "bias"), x)
layer("weight_both", weight_norm(spectral_norm(nn.Linear(5, 3)), "bias"), x)


class Lists(nn.Module):
    """ModuleDict, ParameterList and ParameterDict in a module."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"wide": nn.Linear(5, 4), "deep": nn.Linear(5, 4, bias=False)})
        self.shifts = nn.ParameterList([nn.Parameter(formula((4,), 1)), nn.Parameter(formula((1,), 2))])
        self.scales = nn.ParameterDict({"wide": nn.Parameter(formula((4,), 3)), "deep": nn.Parameter(formula((1,), 4))})

    def forward(self, x):
        y = sum(self.scales[name] * head(x) for name, head in self.heads.items())
        return sum(self.shifts, y)


layer("lists", Lists(), x)
write("norms")
