"""Cryptographic bit streams."""
