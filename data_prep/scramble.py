"""Even numbers from hashes and a salt: for the order, and what is held out."""

import hashlib

import numpy as np
import numpy.typing as npt


def scramble(values: npt.NDArray[np.uint64], salt: str) -> npt.NDArray[np.uint64]:
    """Maps numbers, (n,), to evenly spread ones, by SplitMix64 from a salt."""
    digest = hashlib.blake2b(salt.encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "little")

    z = values * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
