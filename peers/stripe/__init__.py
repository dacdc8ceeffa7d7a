"""stripe-stateful-mock: a payment provider that honours Idempotency-Key."""
