\set k random(1, :base) * :step
SELECT * FROM command_ledger.register('pay', :k, :params);
