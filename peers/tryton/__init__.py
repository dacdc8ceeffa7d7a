"""Tryton: an ERP without idempotency, that answers 200 with an error in the body."""
