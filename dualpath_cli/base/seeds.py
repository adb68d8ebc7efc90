"""Seeds from names: a draw depends on its name, not on the order of draws."""

import hashlib


def seed_from(*names: object) -> int:
    """Returns a seed of 64 bits for the names, joined by slashes: the same on every
    machine.

    Bytes are used unchanged, other objects as their `str`.
    """
    content = b"/".join(n if isinstance(n, bytes) else str(n).encode() for n in names)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
