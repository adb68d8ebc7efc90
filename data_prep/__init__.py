"""A corpus of texts into tokenised, hashed litdata shards: `python -m data_prep`."""
