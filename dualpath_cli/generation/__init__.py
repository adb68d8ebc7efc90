"""`dualpath generate`: what a trained model writes, and how it is made to write."""
