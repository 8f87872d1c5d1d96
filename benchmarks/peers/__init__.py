"""Drivers of other toolkits, measured beside regard."""
