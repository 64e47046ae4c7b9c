"""Layer 1, trusted, the public half: plans of queries, their sensitivity and their SQL; it reads no record."""
