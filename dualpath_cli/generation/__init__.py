"""`dualpath generate`: texts by a trained model."""
