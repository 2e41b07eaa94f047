"""Writes data_images.safetensors: images that torchvision has transformed, and PNG and JPEG files that PIL has encoded
and decoded. tests/data/transforms_test.cpp and tests/data/image_test.cpp read it.
It needs PyTorch, torchvision, Pillow and safetensors."""
import io
import pathlib

import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

generator = torch.Generator().manual_seed(3)
out = {}


def image(channels, height, width):
    """Returns a smooth image with noise and a few saturated pixels."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    planes = [127 + 100 * torch.sin(x * (0.3 + 0.1 * c) + y * 0.2 + c) for c in range(channels)]
    noise = 60 * torch.randn(channels, height, width, generator=generator)
    return (torch.stack(planes) + noise).clamp(0, 255).to(torch.uint8)


def resize(x, size, mode="bilinear", antialias=True):
    """F.resize. Bytes go through floats, because PyTorch's kernel for bytes rounds between rows and columns."""
    y = F.resize(x.float(), size, InterpolationMode(mode), antialias=antialias)
    return y if x.is_floating_point() else y.round().clamp(0, 255).to(torch.uint8)


def record(name, fn):
    out[f"{name}/u8"] = fn(out["image/u8"]).contiguous()
    out[f"{name}/f32"] = fn(out["image/f32"]).contiguous()


out["image/u8"] = image(3, 17, 23)
out["image/f32"] = out["image/u8"].float() / 255
for mode in ["nearest", "bilinear", "bicubic"]:
    for size in [(5, 7), (17, 9), (40, 31), (17, 23), (1, 1)]:
        for antialias in [True, False] if mode != "nearest" else [True]:
            record(f"resize/{mode}/{size[0]}x{size[1]}/{int(antialias)}",
                   lambda x: resize(x, list(size), mode, antialias))
record("resize/shorter/8", lambda x: resize(x, 8))
record("resize/tall/8", lambda x: resize(x.transpose(1, 2), 8))
for size in [(10, 11), (9, 8), (30, 6), (20, 28)]:
    record(f"center_crop/{size[0]}x{size[1]}", lambda x: F.center_crop(x, list(size)))
for factor in [0.0, 0.6, 1.0, 1.7]:
    record(f"brightness/{factor}", lambda x: F.adjust_brightness(x, factor))
    record(f"contrast/{factor}", lambda x: F.adjust_contrast(x, factor))
    record(f"saturation/{factor}", lambda x: F.adjust_saturation(x, factor))
for shift in [-0.5, -0.13, 0.0, 0.4]:
    record(f"hue/{shift}", lambda x: F.adjust_hue(x, shift))
def rotate(x, angle, mode, fill):
    """F.rotate. With a fill, edge pixels mix the image with it by the covered part; torchvision weights them twice."""
    if not fill or mode == "nearest":
        fill = [fill * (255 if x.dtype == torch.uint8 else 1)] if fill else None
        return F.rotate(x, angle, InterpolationMode(mode), fill=fill)
    if x.dtype == torch.uint8:
        return (rotate(x.float() / 255, angle, mode, fill) * 255).round().to(torch.uint8)
    covered = F.rotate(torch.ones_like(x), angle, InterpolationMode(mode))
    return F.rotate(x, angle, InterpolationMode(mode)) + (1 - covered) * fill


for angle in [0.0, 31.0, -90.0, 123.4]:
    for mode in ["nearest", "bilinear"]:
        for fill in [0, 0.4]:
            record(f"rotate/{mode}/{angle}/{fill}", lambda x: rotate(x, angle, mode, fill))
record("rotate/center", lambda x: F.rotate(x, 20.0, InterpolationMode.BILINEAR, center=[4.0, 12.0]))


def encode(name, picture, format, mode=None, **options):
    """Records the file, and its pixels as PIL decodes them in `mode`."""
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    pixels = Image.open(io.BytesIO(buffer.getvalue()))
    if mode:
        pixels = pixels.convert(mode)
    out[f"{name}/file"] = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    out[f"{name}/pixels"] = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).reshape(
        pixels.height, pixels.width, -1).permute(2, 0, 1).contiguous()


rgb, rgba, gray = (Image.fromarray(image(c, 19, 26).permute(1, 2, 0).squeeze(2).numpy()) for c in (3, 4, 1))
encode("png/rgb", rgb, "PNG")
encode("png/rgba", rgba, "PNG")
encode("png/gray", gray, "PNG")
encode("png/gray_alpha", rgba.convert("LA"), "PNG")
encode("png/palette", rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=40), "PNG", "RGB")
encode("png/bits1", gray.convert("1"), "PNG", "L")
transparent = rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=7)
encode("png/transparent", transparent, "PNG", "RGBA", transparency=3)
encode("jpeg/rgb", rgb, "JPEG", quality=90)
encode("jpeg/444", rgb, "JPEG", quality=95, subsampling=0)
encode("jpeg/progressive", rgb, "JPEG", progressive=True)
encode("jpeg/gray", gray, "JPEG")
encode("jpeg/cmyk", rgb.convert("CMYK"), "JPEG", "RGB")

save_file({name: t.clone() for name, t in out.items()}, pathlib.Path(__file__).with_suffix(".safetensors"))
