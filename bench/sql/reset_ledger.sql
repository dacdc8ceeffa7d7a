-- The start of a cell: :base finished commands, :backlog waiting ones.
SELECT bench.empty();
SELECT bench.load_finished(:base);
SELECT bench.restore_waiting(:backlog);
VACUUM ANALYZE command_ledger.command;
VACUUM ANALYZE command_ledger.command_event;
VACUUM ANALYZE command_ledger.outbox;
VACUUM ANALYZE command_ledger.approval_request;
