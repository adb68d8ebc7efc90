"""A model as data: its configuration, interventions, custom classes."""
