-- What is open beside the finished: :open commands that wait, half as many questions, runs and approvals.
SELECT command_ledger.grant_access('bench_auditor', 'audit');
SELECT command_ledger.grant_access('bench_auditor', 'operate');
SELECT count(command_ledger.register('pay', 'asked-' || i, :'params', run_id => 'run-' || i / 5, step_id => 'step-' || i % 5))
  FROM generate_series(1, :open) i;
SELECT count(command_ledger.uncertain(idempotency_key, lease_token)) FROM command_ledger.claim('desk', :open / 2 + 1);
SELECT count(command_ledger.register('pay_approved', 'planned-' || i, :'params')) FROM generate_series(1, :open) i;
SELECT count(command_ledger.register('pay', 'queued-' || i, :'params', run_id => 'run-' || i / 5)) FROM generate_series(1, :open) i;
VACUUM ANALYZE command_ledger.command;
VACUUM ANALYZE command_ledger.command_event;
VACUUM ANALYZE command_ledger.outbox;
VACUUM ANALYZE command_ledger.approval_request;
VACUUM ANALYZE command_ledger.reconciliation_case;
