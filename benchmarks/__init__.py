"""Measurements of regard, run as `python -m benchmarks.ROOM.NAME`; README.md lists them."""
