"""A picture and a recording to read."""

import numpy as np

RATE = 16000


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
