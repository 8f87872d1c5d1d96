"""Record what a module attends to while it runs, whatever kernel computes it."""

from regard.seeing.capture.capture_result import CapturedModule, CaptureResult
from regard.seeing.capture.recorder import capture

__all__ = ["CaptureResult", "CapturedModule", "capture"]
