"""Traces as plain data: texts and attention maps, their files, and what can be counted in them."""

from regard.seeing.trace.trace import (
    KINDS,
    SIDES,
    DecodingInfo,
    Map,
    MapKind,
    ModelInfo,
    Text,
    Token,
    Trace,
    TraceError,
    Weights,
    brief,
    missing_mass,
)

__all__ = [
    "KINDS",
    "SIDES",
    "DecodingInfo",
    "Map",
    "MapKind",
    "ModelInfo",
    "Text",
    "Token",
    "Trace",
    "TraceError",
    "Weights",
    "brief",
    "missing_mass",
]
