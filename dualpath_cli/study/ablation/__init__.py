"""What interventions on a trained model cost."""
