"""`dualpath sweep`: configurations of equal FLOPs, trained with seeds and a learning rate each."""
