"""Layer 1, trusted: the part that reads records, through SQL engines and prepared snapshots."""
