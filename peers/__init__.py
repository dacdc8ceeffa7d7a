"""Real systems as destinations of the ledger: see README.md."""
