"""Decoding, timed."""
