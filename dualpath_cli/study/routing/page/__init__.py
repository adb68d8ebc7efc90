"""The page on which routing is read token by token."""
