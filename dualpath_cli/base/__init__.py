"""What every room stands on: errors, ranges of numbers, files, locks, the version."""
