"""Traces of what each output attended to, and everything that records, checks and draws them."""

from regard.seeing.display import save
from regard.seeing.trace.trace import DecodingInfo, Map, ModelInfo, Text, Token, Trace, TraceError
from regard.seeing.trace.view import View, select

__all__ = [
    "DecodingInfo",
    "Map",
    "ModelInfo",
    "Text",
    "Token",
    "Trace",
    "TraceError",
    "View",
    "save",
    "select",
]
