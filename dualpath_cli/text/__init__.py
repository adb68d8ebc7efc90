"""Text in and tokens out: sources of documents, tokenizers, and the manifest of a data folder.

Shared by `data_prep`, training and evaluation; imports neither torch nor lightning.
"""
