"""Record what a module attends to while it runs, whatever kernel computes it."""
