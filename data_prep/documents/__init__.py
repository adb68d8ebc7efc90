"""From rows to pieces: documents are cleaned, checked, tokenised and compared."""
