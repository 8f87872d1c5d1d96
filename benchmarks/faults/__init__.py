"""Runs, servers and clusters under attack."""
