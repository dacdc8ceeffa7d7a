-- Only the ledger's own statements write its tables, for the owner too. The WHEN clause is false for them, so nothing
-- is queued; see src/pg/guard.rs.

CREATE FUNCTION command_ledger.write_is_guarded() RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ledger_write_is_guarded';
COMMENT ON FUNCTION command_ledger.write_is_guarded() IS
    'True while one of the ledger''s own statements writes. For the triggers; of no use elsewhere.';

CREATE FUNCTION command_ledger.refuse_direct_write() RETURNS trigger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_refuse_direct_write';
COMMENT ON FUNCTION command_ledger.refuse_direct_write() IS
    'Refuses INSERT, UPDATE, DELETE and TRUNCATE that do not come from the ledger''s functions (CL006); lets a restore insert while the ledger is unadopted.';

DO $guard$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['relay_fence', 'destination', 'command_type', 'command', 'command_event', 'approval_request',
                                'approval', 'outbox', 'lane', 'reconciliation_case', 'inbox', 'access'] LOOP
        EXECUTE pg_catalog.format(
            'CREATE TRIGGER guard_rows AFTER INSERT OR UPDATE OR DELETE ON command_ledger.%I FOR EACH ROW
             WHEN (NOT command_ledger.write_is_guarded()) EXECUTE FUNCTION command_ledger.refuse_direct_write()', name);
        EXECUTE pg_catalog.format(
            'CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON command_ledger.%I
             FOR EACH STATEMENT EXECUTE FUNCTION command_ledger.refuse_direct_write()', name);
    END LOOP;
END
$guard$;
