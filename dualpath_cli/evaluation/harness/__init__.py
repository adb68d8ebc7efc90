"""lm-evaluation-harness: our models and those of transformers as it sees them, and our tasks."""
