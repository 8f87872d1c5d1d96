"""Decoders of trained models on the CPU: steps without what only training or a GPU needs.

A step of `Decoder.forward` is many small operations, and copies keys and values when hypotheses
are reordered. Here the weights are prepared once, a source's tensors exist once for all of its
hypotheses, and compiled kernels do the rest; the encoder is the model's own.
"""

from regard.models.cpu.model import CpuModel, refuse_cpu_model

__all__ = ["CpuModel", "refuse_cpu_model"]
