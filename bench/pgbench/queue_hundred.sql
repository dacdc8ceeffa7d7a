SELECT coalesce(array_agg(id), '{}') AS ids FROM floors.read(100) \gset
SELECT floors.archive(:ids);
