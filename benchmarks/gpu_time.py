"""Timing on a GPU, shared by the benchmarks of kernels."""

from collections.abc import Callable
from typing import Any

import torch


def graph_of(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Capture the device work of one call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def row_ms(function: Callable[[], Any], calls: int) -> float:
    """Return the mean milliseconds of consecutive calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


def versions() -> dict[str, Any]:
    """Return the device and the versions of torch, CUDA and triton."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }
