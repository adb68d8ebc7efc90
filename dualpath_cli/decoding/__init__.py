"""Decoding: from a model to its next tokens, one at a time or drafted."""
