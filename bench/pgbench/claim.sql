SELECT count(*) FROM command_ledger.claim('desk');
