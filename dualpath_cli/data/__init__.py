"""Text in, tokens out: documents, tokenizers, data folders, and the batches of a run.

But for `blocks` and `windows` it imports neither torch nor lightning.
"""
