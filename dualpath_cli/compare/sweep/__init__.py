"""`dualpath sweep`: configurations of equal FLOPs, trained with seeds."""
