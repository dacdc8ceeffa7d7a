SELECT pgmq.send('bench', :params::jsonb);
SELECT coalesce(array_agg(msg_id), '{}') AS ids FROM pgmq.read('bench', 30, 1) \gset
SELECT count(*) FROM pgmq.archive('bench', :ids::bigint[]);
