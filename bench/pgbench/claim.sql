SELECT count(*) AS got, max(idempotency_key) AS key, max(lease_token::text) AS token FROM command_ledger.claim('desk') \gset
\if :got
SELECT * FROM command_ledger.confirm(:key, :token, 'rcpt_0123456789', :answer);
\endif
