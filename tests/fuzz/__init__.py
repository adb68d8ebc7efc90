"""Fuzzer of what users give: recipes, words, run folders, data folders. See `__main__`."""
