"""What is written and shown: whole files, CSV, progress, colours."""
