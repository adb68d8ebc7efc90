"""The paper's tables and sentences, recomputed."""
