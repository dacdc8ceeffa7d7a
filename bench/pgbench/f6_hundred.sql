SELECT coalesce(array_agg(id), '{}') AS ids FROM floors.claim(100) \gset
SELECT floors.confirm(:ids, :answer);
