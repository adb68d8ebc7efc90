"""The cost of interventions on a trained model."""
