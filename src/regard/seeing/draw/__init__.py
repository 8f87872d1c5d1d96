"""Views of a trace as text and as figures."""
