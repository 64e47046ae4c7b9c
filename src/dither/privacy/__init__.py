"""Layer 2, trusted: costs requests, charges the ledger, reads, adds noise and releases on schedule."""
