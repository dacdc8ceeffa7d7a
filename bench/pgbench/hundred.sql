SELECT coalesce(array_agg(idempotency_key), '{}') AS keys, coalesce(array_agg(lease_token), '{}') AS tokens FROM command_ledger.claim('desk', 100) \gset
SELECT count(*) FROM command_ledger.confirm_many(:keys, :tokens, array_fill('rcpt_0123456789'::text, ARRAY[cardinality(:keys::text[])]), array_fill(:answer::jsonb, ARRAY[cardinality(:keys::text[])]));
