\set k random(1, 9223372036854775806)
SELECT * FROM command_ledger.register('pay_approved', :k, :params);
