"""The experiments of the lab, one module each."""
