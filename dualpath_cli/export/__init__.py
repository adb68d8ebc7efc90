"""`dualpath export`: a trained model in the formats of other tools."""
