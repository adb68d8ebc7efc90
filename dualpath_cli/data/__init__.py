"""Text in, tokens out: documents, tokenizers, data folders, and the batches of a run.

Only `blocks`, `losses`, `order` and `windows` import torch.
"""
