"""The experiments, one per file."""
