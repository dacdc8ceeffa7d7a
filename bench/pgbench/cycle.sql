\set k random(1, 9223372036854775806)
SELECT * FROM command_ledger.register('pay', :k, :params);
SELECT count(*) AS got, max(idempotency_key) AS key, max(lease_token::text) AS token FROM command_ledger.claim('desk') \gset
\if :got
SELECT * FROM command_ledger.confirm(:key, :token, 'rcpt_0123456789', :answer);
\endif
