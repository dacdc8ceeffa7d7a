-- The start of a cell of pgmq.
TRUNCATE pgmq.q_bench, pgmq.a_bench RESTART IDENTITY;
INSERT INTO pgmq.a_bench (msg_id, vt, read_ct, message) SELECT -i, now(), 1, :'params' FROM generate_series(1, :base) i;
SELECT count(*) FROM pgmq.send_batch('bench', ARRAY(SELECT :'params'::jsonb FROM generate_series(1, :backlog)));
VACUUM ANALYZE pgmq.q_bench;
VACUUM ANALYZE pgmq.a_bench;
