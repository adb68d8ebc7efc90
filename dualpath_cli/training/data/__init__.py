"""The data of training: blocks of tokens in their order, and windows of texts."""
