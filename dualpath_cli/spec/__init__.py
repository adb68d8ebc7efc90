"""A model as data: its configuration, interventions on it, its custom gates and
combinations."""
