"""Layer 1, trusted, the private half: reads records, through SQL engines and prepared snapshots."""
