"""Numbers and how they are shown: intervals and tests; console, tables, figures, pages."""
