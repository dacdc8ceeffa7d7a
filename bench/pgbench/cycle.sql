\set k random(1, 9223372036854775806)
SELECT * FROM command_ledger.register('pay', :k, :params);
SELECT idempotency_key AS key, lease_token AS token FROM command_ledger.claim('desk') \gset
SELECT * FROM command_ledger.confirm(:key, :token, 'rcpt_0123456789', :answer);
