"""Dither: ask questions of sensitive data under differential privacy."""
