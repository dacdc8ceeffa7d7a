-- Keeps one finished and :waiting waiting commands aside, for bench.load_finished() and bench.restore_waiting().
SELECT bench.empty();
SELECT (command_ledger.register('pay', 'template', :'params')).outcome;
SELECT idempotency_key, lease_token FROM command_ledger.claim('desk', 1) \gset
SELECT (command_ledger.confirm(:'idempotency_key', :'lease_token', 'rcpt_0123456789', '{"ok": true}')).status;
DROP TABLE IF EXISTS bench.done_command, bench.done_event, bench.waiting_command, bench.waiting_outbox;
CREATE TABLE bench.done_command AS TABLE command_ledger.command;
CREATE TABLE bench.done_event AS TABLE command_ledger.command_event;
SELECT bench.empty();
SELECT count((command_ledger.register('pay', 'waiting-' || lpad(i::text, 9, '0'), :'params')).outcome)
  FROM generate_series(1, :waiting) i;
CREATE TABLE bench.waiting_command AS SELECT * FROM command_ledger.command ORDER BY idempotency_key;
CREATE TABLE bench.waiting_outbox AS SELECT * FROM command_ledger.outbox ORDER BY idempotency_key;
CREATE INDEX ON bench.waiting_command (idempotency_key);
CREATE INDEX ON bench.waiting_outbox (idempotency_key);
VACUUM ANALYZE bench.waiting_command;
VACUUM ANALYZE bench.waiting_outbox;
SELECT bench.empty();
