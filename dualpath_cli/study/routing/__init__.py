"""Reading the routing of a trained model: read-outs, statistics, figures, a page."""
