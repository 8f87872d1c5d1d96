"""Seeing where each output looked: the trace, and all that is drawn from it."""

from regard.seeing.files import save
from regard.seeing.trace import Decoded, Map, ModelInfo, Text, Token, Trace, TraceError
from regard.seeing.view import View, select, select_all

__all__ = [
    "Decoded",
    "Map",
    "ModelInfo",
    "Text",
    "Token",
    "Trace",
    "TraceError",
    "View",
    "save",
    "select",
    "select_all",
]
