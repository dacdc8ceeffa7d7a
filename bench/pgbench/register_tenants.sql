\set k random(1, 9223372036854775806)
\set t random(1, 1000)
SELECT * FROM command_ledger.register('pay', :k, :params, tenant => 'tenant-' || :t::text);
