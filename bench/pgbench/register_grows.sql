SELECT * FROM command_ledger.register('pay', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text || '-' || :client_id, :params);
