SELECT coalesce(array_agg(idempotency_key), '{}') AS keys, coalesce(array_agg(lease_token), '{}') AS tokens FROM command_ledger.claim('desk', 100) \gset
SELECT count(*) FROM unnest(:keys::text[], :tokens::uuid[]) AS c (key, token), command_ledger.confirm(c.key, c.token, 'rcpt_0123456789', :answer);
