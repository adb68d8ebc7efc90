"""What every room stands on: errors, ranges of numbers, files, standard output, the version."""
