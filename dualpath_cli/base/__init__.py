"""What every room stands on: errors, ranges of numbers, the operating system, the
version."""
