\set k random(1, 9223372036854775806)
SELECT * FROM floors.register(:k, :params);
SELECT coalesce(array_agg(id), '{}') AS ids FROM floors.claim(1) \gset
SELECT floors.confirm(:ids, :answer);
