-- The start of a cell of the plain queue.
TRUNCATE floors.queue, floors.archive RESTART IDENTITY;
INSERT INTO floors.archive (id, reads, sent_at, visible_at, message) SELECT -i, 1, now(), now(), :'params' FROM generate_series(1, :base) i;
INSERT INTO floors.queue (visible_at, message) SELECT now(), :'params' FROM generate_series(1, :backlog) i;
VACUUM ANALYZE floors.queue;
VACUUM ANALYZE floors.archive;
