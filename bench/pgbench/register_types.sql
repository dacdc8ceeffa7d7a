\set k random(1, 9223372036854775806)
\set t random(1, 50)
SELECT * FROM command_ledger.register('pay_' || :t::text, :k, :params);
