"""What is learned from a trained model."""
