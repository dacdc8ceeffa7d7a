-- :base finished commands with their three entries each, and :backlog waiting ones, in the floors. In full pages, as the ledger's.
TRUNCATE floors.lone, floors.command, floors.event, floors.outbox, floors.queue, floors.archive RESTART IDENTITY;
ALTER TABLE floors.command SET (fillfactor = 100);
INSERT INTO floors.command (key, hash, params, status, attempt, result)
    SELECT (((i * 7368787) % :base + 1) * (9223372036854775806 / :base))::text, sha256(convert_to(:'params', 'UTF8')), :'params', 2, 1, '{"ok": true}'
      FROM generate_series(1::bigint, :base) i;
ALTER TABLE floors.command SET (fillfactor = 80);
INSERT INTO floors.event (command_id, seq, kind) SELECT i, s, s FROM generate_series(1::bigint, :base) i, generate_series(0, 2) s;
SELECT count(floors.register('waiting-' || i, :'params')) FROM generate_series(1, :backlog) i;
VACUUM ANALYZE floors.command;
VACUUM ANALYZE floors.event;
VACUUM ANALYZE floors.outbox;
