"""SQL of plans: builders, dialects, the row order, and whole statements."""
