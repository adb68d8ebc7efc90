"""The GPU programme: what is measured on one CUDA GPU, in calls of at most ten minutes."""
