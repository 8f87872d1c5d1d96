"""Seeing where each output looked: the trace, and all that is drawn from it."""

from regard.seeing.trace import Decoded, Map, ModelInfo, Text, Token, Trace, TraceError

__all__ = ["Decoded", "Map", "ModelInfo", "Text", "Token", "Trace", "TraceError"]
