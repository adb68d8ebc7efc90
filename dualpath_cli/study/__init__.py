"""Studies of a trained model."""
