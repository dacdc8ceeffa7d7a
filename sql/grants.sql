-- Rights. Nothing is left to PUBLIC and nothing is granted by default: grant_access() gives a role the functions and
-- views of a capability, revoke_access() takes them back. The tables themselves are granted to nobody; whoever gets
-- SELECT on one all the same sees the rows that the views would show (row level security; the owner, superusers and
-- roles with BYPASSRLS, who take the backups, see all).

REVOKE ALL ON SCHEMA command_ledger FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA command_ledger FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA command_ledger FROM PUBLIC;

ALTER TABLE command_ledger.relay_fence ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.destination ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.command_type ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.command ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.command_event ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.approval_request ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.approval ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.lane ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.reconciliation_case ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.inbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE command_ledger.access ENABLE ROW LEVEL SECURITY;

-- Destinations and types are global; so are the fence and the grants, for those who may read everything.
CREATE POLICY read_all ON command_ledger.relay_fence FOR SELECT USING ((SELECT command_ledger.may_read_all()));
CREATE POLICY read_all ON command_ledger.destination FOR SELECT USING ((SELECT command_ledger.may_read_all()));
CREATE POLICY read_all ON command_ledger.command_type FOR SELECT USING ((SELECT command_ledger.may_read_all()));
CREATE POLICY read_all ON command_ledger.access FOR SELECT USING ((SELECT command_ledger.may_read_all()));
-- Messages have a tenant but no command type: only a grant for all types reads them.
CREATE POLICY read_all ON command_ledger.inbox FOR SELECT USING ((SELECT command_ledger.may_read_all()));

CREATE POLICY read_own ON command_ledger.command FOR SELECT
    USING ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(tenant, command_type));
-- The rest has its type in the command's row, which must be readable as well.
CREATE POLICY read_own ON command_ledger.command_event FOR SELECT
    USING (EXISTS (SELECT FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) command_event.tenant
                      AND c.idempotency_key OPERATOR(pg_catalog.=) command_event.idempotency_key));
CREATE POLICY read_own ON command_ledger.approval_request FOR SELECT
    USING (EXISTS (SELECT FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) approval_request.tenant
                      AND c.idempotency_key OPERATOR(pg_catalog.=) approval_request.idempotency_key));
CREATE POLICY read_own ON command_ledger.approval FOR SELECT
    USING (EXISTS (SELECT FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) approval.tenant
                      AND c.idempotency_key OPERATOR(pg_catalog.=) approval.idempotency_key));
CREATE POLICY read_own ON command_ledger.lane FOR SELECT
    USING (EXISTS (SELECT FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) lane.tenant
                      AND c.idempotency_key OPERATOR(pg_catalog.=) lane.idempotency_key));
CREATE POLICY read_own ON command_ledger.reconciliation_case FOR SELECT
    USING (EXISTS (SELECT FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) reconciliation_case.tenant
                      AND c.idempotency_key OPERATOR(pg_catalog.=) reconciliation_case.idempotency_key));
-- The outbox holds lease tokens: no policy, so nobody but the owner reads it; the views show the rest of it.
