"""Layer 1, trusted: the public part, which describes queries as plans and derives their bounds; it reads no record."""
