"""Small models of pictures with random weights, and files to read."""

import numpy as np
import torch
from torch import nn

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 11,
}
#: 5 x 5 patches of 4 x 4 pixels
PICTURE = {"image_size": 20, "patch_size": 4, "num_labels": 3}
PICTURE |= {"id2label": {0: "cat", 1: "dog", 2: "mat"}}
FAMILIES = {
    "vit": ("ViTConfig", "ViTForImageClassification", {**SIZES, **PICTURE}),
    "deit": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", {**SIZES, **PICTURE}),
}
RATE = 16000


def build(hugging, family, how="sdpa", dtype=torch.float32, classes=None, **sizes):
    """A model with weights so large that its maps are not flat."""
    config, model, own = FAMILIES[family]
    torch.manual_seed(2)
    config = getattr(hugging, config)(**{**own, **sizes})
    config._attn_implementation = how
    model = getattr(hugging, classes or model)(config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.to(dtype)


def build_processor(hugging, family):
    size = {"height": 20, "width": 20}
    kind = hugging.ViTImageProcessorPil if family == "vit" else hugging.DeiTImageProcessorPil
    own = {"size": size} if family == "vit" else {"size": size, "crop_size": size}
    return kind(**own)


def save(hugging, folder, family, **options):
    """Write a model with what prepares its inputs, as a user would."""
    build(hugging, family, **options).save_pretrained(folder)
    build_processor(hugging, family).save_pretrained(folder)
    return folder


def picture(width=40, height=30):
    """A bright disc on a dark ground, (height, width, 3)."""
    y, x = np.mgrid[:height, :width]
    inside = (x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2
    ground = np.stack([x * 3 % 256, y * 5 % 256, np.full_like(x, 60)], axis=-1)
    return np.where(inside[..., None], [250, 210, 40], ground).astype(np.uint8)


def sweep(seconds=0.7, rate=RATE):
    """A rising tone in a little noise."""
    t = np.arange(round(seconds * rate)) / rate
    noise = 0.01 * np.random.default_rng(5).normal(size=t.shape)
    return (0.4 * np.sin(2 * np.pi * (300 + 900 * t) * t) + noise).astype(np.float32)
