-- Types. The receipt (type command_ledger.command_ledger) is what every function answers.

DO $check$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'command_ledger needs a database with encoding UTF8, this one has %', pg_catalog.getdatabaseencoding()
            USING ERRCODE = '0A000', HINT = 'Create the database with ENCODING ''UTF8''.';
    END IF;
END
$check$;

CREATE TYPE command_ledger.command_status AS ENUM (
    'planned', 'approved', 'dispatched', 'confirmed', 'failed', 'needs_reconciliation', 'cancelled');
COMMENT ON TYPE command_ledger.command_status IS
    'Where a command stands. confirmed and cancelled are final; failed is left only by an operator''s retry or by late success; needs_reconciliation means that the outcome is not known.';

CREATE TYPE command_ledger.error_class AS ENUM (
    'not_sent', 'transient', 'permanent', 'permission', 'uncertain', 'rejected', 'expired', 'budget_exhausted');
COMMENT ON TYPE command_ledger.error_class IS
    'What kind of failure the last attempt met, or why no further attempt is made.';

CREATE TYPE command_ledger.command_ledger AS (
    command_id uuid,
    tenant text,
    idempotency_key text,
    command_type text,
    type_version int,
    status command_ledger.command_status,
    outcome text,
    destination text,
    destination_key text,
    destination_record_id text,
    result jsonb,
    params_hash bytea,
    intent_hash bytea,
    attempt int,
    maybe_sent bool,
    reconciliation_required bool,
    approvals_missing int,
    retry_at timestamptz,
    deadline timestamptz,
    error command_ledger.error_class,
    error_message text,
    registered_at timestamptz,
    updated_at timestamptz);
COMMENT ON TYPE command_ledger.command_ledger IS
    'The receipt: the state of one command as the answering function left it. outcome says what this call did: created, replayed, changed, unchanged or late; it is NULL in a mere reading.';

CREATE TYPE command_ledger.dispatch AS (
    command_id uuid,
    lease_token uuid,
    attempt int,
    tenant text,
    idempotency_key text,
    destination_key text,
    command_type text,
    type_version int,
    params jsonb,
    lease_expires_at timestamptz,
    deadline timestamptz);
COMMENT ON TYPE command_ledger.dispatch IS
    'What a claim hands to a worker: one attempt, fenced by its lease token. The destination key is the only key that may stand in the request.';
