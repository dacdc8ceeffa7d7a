"""What every peer's scenarios stand on: processes, a throwaway PostgreSQL with the ledger, a proxy that loses answers."""
