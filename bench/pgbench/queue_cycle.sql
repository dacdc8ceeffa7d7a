SELECT floors.send(:params);
SELECT coalesce(array_agg(id), '{}') AS ids FROM floors.read(1) \gset
SELECT floors.archive(:ids);
