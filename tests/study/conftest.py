"""The tiny recipe and its texts, as the tests of training have them."""

from tests.training.conftest import fit, texts, trained

__all__ = ["fit", "texts", "trained"]
