"""Numbers and their display: intervals and tests; console, tables, figures, pages."""
