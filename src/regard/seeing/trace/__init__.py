"""Traces as plain data: texts and attention maps, their files, and what can be counted in them."""
