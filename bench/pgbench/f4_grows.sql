SELECT * FROM floors.register((extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text || '-' || :client_id, :params);
