-- Tables. Identity everywhere is (tenant, idempotency_key), bytewise collation; no sequences, no foreign keys between
-- tenants' rows, no index on status (see docs/design.md).

CREATE TABLE command_ledger.relay_fence (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    extension_oid oid NOT NULL,
    timeline int NOT NULL,
    control_inode bigint NOT NULL,
    adopted_at timestamptz NOT NULL,
    adopted_by text NOT NULL);
COMMENT ON TABLE command_ledger.relay_fence IS
    'Which ledger this is (system, database, extension) and where it was adopted (timeline, control file). Never in a dump: a copy of the database sends nothing until a person adopts it.';

CREATE TABLE command_ledger.destination (
    name text COLLATE "C" PRIMARY KEY,
    revision int NOT NULL,
    config jsonb NOT NULL,
    paused_at timestamptz,
    paused_by text,
    defined_at timestamptz NOT NULL,
    defined_by text NOT NULL);
COMMENT ON TABLE command_ledger.destination IS
    'A system that commands are sent to: how to reach it, its limits, what it does with a repeated key, how to look up.';

CREATE TABLE command_ledger.command_type (
    name text COLLATE "C" NOT NULL,
    version int NOT NULL,
    destination text COLLATE "C" NOT NULL,
    policy jsonb NOT NULL,
    defined_at timestamptz NOT NULL,
    defined_by text NOT NULL,
    PRIMARY KEY (name, version));
COMMENT ON TABLE command_ledger.command_type IS
    'The contract of one operation, a row per version. Commands keep the version that they were registered with.';

CREATE TABLE command_ledger.command (
    -- What a settlement changes stands together, and what never changes after it: the log of an update has only what is
    -- between the first and the last byte that changed.
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL,
    first_sent_at timestamptz,
    redacted_at timestamptz,
    retain_until timestamptz,
    status command_ledger.command_status NOT NULL,
    error command_ledger.error_class,
    attempt int NOT NULL DEFAULT 0,
    counted_attempts int NOT NULL DEFAULT 0,
    journal_seq int NOT NULL DEFAULT 0,
    maybe_sent boolean NOT NULL DEFAULT false,
    journal_head bytea NOT NULL,
    request_digest bytea,
    destination_record_id text,
    result jsonb,
    error_message text,
    open_case text,
    registered_at timestamptz NOT NULL,
    not_before timestamptz,
    deadline timestamptz,
    lookalike_until timestamptz,
    retain_ms bigint,
    type_version int NOT NULL,
    hash_version smallint NOT NULL,
    approvals_required smallint NOT NULL DEFAULT 0,
    deadline_relative boolean NOT NULL DEFAULT false,
    command_type text COLLATE "C" NOT NULL,
    params_hash bytea NOT NULL,
    intent_hash bytea NOT NULL,
    proposer text NOT NULL,
    params jsonb,
    run_id text,
    step_id text,
    workflow_version text,
    ordering_key text COLLATE "C",
    refs jsonb,
    proposal jsonb,
    PRIMARY KEY (tenant, idempotency_key))
    -- A command is written once more, at settlement: room for that on its page (fillfactor). The table is large, and a fifth
    -- of it (the server's default) is too much to wait for: purge() leaves dead rows at a steady rate, and a repeat that
    -- finds its key wants a page that is all visible.
    WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
          autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
COMMENT ON TABLE command_ledger.command IS
    'The record: one row per command, which is also entry 0 of its journal. While a row in outbox exists, the live attempt, lease and journal head stand there; read the state with status() or the views.';
COMMENT ON COLUMN command_ledger.command.counted_attempts IS
    'Attempts that count against max_attempts: all but the released ones.';
COMMENT ON COLUMN command_ledger.command.deadline_relative IS
    'The deadline follows from the type''s retry.deadline and is counted again at each approval; false: the caller gave it, or there is none.';
COMMENT ON COLUMN command_ledger.command.proposal IS
    'What the proposer wants kept beside the command (a model''s output). Never sent.';

CREATE INDEX command_run ON command_ledger.command (tenant, run_id) WHERE run_id IS NOT NULL;
COMMENT ON COLUMN command_ledger.command.retain_ms IS
    'How long after settlement purge() has its first work on this command, in milliseconds, as its command type says; NULL: never.';
COMMENT ON COLUMN command_ledger.command.retain_until IS
    'When purge() looks at this settled command next; NULL while it is open and where nothing is left to do.';
CREATE INDEX command_retention ON command_ledger.command (retain_until) WHERE retain_until IS NOT NULL;
CREATE INDEX command_lookalike ON command_ledger.command (params_hash) WHERE lookalike_until IS NOT NULL;

CREATE TABLE command_ledger.command_event (
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    seq int NOT NULL,
    attempt int NOT NULL,
    at timestamptz NOT NULL,
    from_status command_ledger.command_status,
    to_status command_ledger.command_status NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL,
    stated_actor text,
    hash bytea NOT NULL,
    detail jsonb,
    PRIMARY KEY (tenant, idempotency_key, seq))
    -- Rows are added and, much later, purged; never changed. So pages are full, and a vacuum freezes what it sees at once:
    -- nobody has to come back for it, and no wraparound vacuum ever meets the whole journal.
    WITH (fillfactor = 100, autovacuum_freeze_min_age = 0, autovacuum_vacuum_scale_factor = 0.02,
          autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON TABLE command_ledger.command_event IS
    'The journal after entry 0: append-only, each entry chained by hash to the one before it. Read it through the view timeline.';

CREATE TABLE command_ledger.approval_request (
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    requested_at timestamptz NOT NULL,
    deadline timestamptz,
    PRIMARY KEY (tenant, idempotency_key))
    -- A queue: a row per command that waits, gone when it is decided. Small only if the dead go too.
    WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE command_ledger.approval_request IS
    'Commands in state planned: what waits for a person. Small; a row leaves with the state.';

CREATE TABLE command_ledger.approval (
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    seq int NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    role text NOT NULL,
    approver text,
    intent_hash bytea NOT NULL,
    note text,
    PRIMARY KEY (tenant, idempotency_key, seq));
COMMENT ON TABLE command_ledger.approval IS
    'Approvals, each bound to the intent hash that the approver saw. Two of the same role and approver count once.';

CREATE TABLE command_ledger.outbox (
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    deadline timestamptz,
    approved_until timestamptz,
    lease_expires_at timestamptz,
    first_sent_at timestamptz,
    ledger_identity bigint NOT NULL,
    relay_epoch bigint,
    attempt int NOT NULL DEFAULT 0,
    counted_attempts int NOT NULL DEFAULT 0,
    journal_seq int NOT NULL DEFAULT 0,
    error command_ledger.error_class,
    maybe_sent boolean NOT NULL DEFAULT false,
    lease_token uuid,
    destination text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C",
    journal_head bytea NOT NULL,
    request_digest bytea,
    worker text,
    error_message text,
    open_case text,
    success_kept boolean NOT NULL DEFAULT false,
    absence_place bigint,
    kept_record_id text,
    kept_result jsonb,
    PRIMARY KEY (tenant, idempotency_key))
    -- Every command enters, changes a few times and leaves. Half a page is kept free, so that the changes stay on it; a
    -- vacuum comes after 2,000 dead rows whatever the size, and does not pause: the claim reads this
    -- table at every round.
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
          autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE command_ledger.outbox IS
    'Due and leased work only: a row from approval until settlement. It holds the live state of an open command.';
CREATE INDEX outbox_due ON command_ledger.outbox (destination, due_at) WHERE lease_token IS NULL;
CREATE INDEX outbox_leased ON command_ledger.outbox (destination, lease_expires_at) WHERE lease_token IS NOT NULL;
CREATE INDEX outbox_deadline ON command_ledger.outbox (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX outbox_approved_until ON command_ledger.outbox (approved_until) WHERE approved_until IS NOT NULL;

CREATE TABLE command_ledger.lane (
    tenant text COLLATE "C" NOT NULL,
    destination text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    place bigint NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, destination, ordering_key, place))
    -- A queue as well.
    WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE command_ledger.lane IS
    'Order of the open commands that share an ordering key: the lowest place is the head, all others wait for it.';

CREATE TABLE command_ledger.reconciliation_case (
    tenant text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    seq int NOT NULL,
    attempt int NOT NULL,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    next_lookup_at timestamptz,
    evidence_from timestamptz,
    lookups_done int NOT NULL DEFAULT 0,
    absents_in_a_row int NOT NULL DEFAULT 0,
    reason text NOT NULL,
    owner text,
    finding text,
    closed_by text,
    lookup_token uuid,
    last_lookup jsonb,
    evidence jsonb,
    assigned_at timestamptz,
    PRIMARY KEY (tenant, idempotency_key, seq))
    -- An open question changes with every lookup, and the queue is read through a small part of the table.
    WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE command_ledger.reconciliation_case IS
    'Open questions: commands whose outcome is not known, and late evidence that contradicts a final state. Closed by a lookup, by late evidence or by reconcile().';
COMMENT ON COLUMN command_ledger.reconciliation_case.assigned_at IS
    'Since when its owner works on it; NULL while nobody does.';
CREATE INDEX reconciliation_case_open ON command_ledger.reconciliation_case (opened_at) WHERE closed_at IS NULL;
CREATE INDEX reconciliation_case_lookup ON command_ledger.reconciliation_case (next_lookup_at)
    WHERE closed_at IS NULL AND next_lookup_at IS NOT NULL;
-- For the figures of the last questions, and for the count that must be 0.
CREATE INDEX reconciliation_case_closed ON command_ledger.reconciliation_case (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX reconciliation_case_duplicate ON command_ledger.reconciliation_case (opened_at)
    WHERE reason OPERATOR(pg_catalog.=) ANY (ARRAY['duplicate_success', 'duplicate_possible', 'lookup_ambiguous']);

CREATE TABLE command_ledger.inbox (
    tenant text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL,
    payload_hash bytea NOT NULL,
    PRIMARY KEY (tenant, consumer, message_id));
COMMENT ON TABLE command_ledger.inbox IS
    'Messages that a consumer in this database has taken, each once.';

CREATE TABLE command_ledger.access (
    role regrole NOT NULL,
    capability text NOT NULL
        CHECK (capability OPERATOR(pg_catalog.=) ANY (
            ARRAY['propose', 'approve', 'execute', 'operate', 'administer', 'audit'])),
    tenant text COLLATE "C",
    command_types text[],
    granted_at timestamptz NOT NULL,
    granted_by text NOT NULL);
COMMENT ON TABLE command_ledger.access IS
    'Who may do what: a capability for one tenant (NULL: all) and some command types (NULL: all). Members of a role have its rights.';
CREATE UNIQUE INDEX access_grant ON command_ledger.access (role, capability, (coalesce(tenant, '/')));

-- Everything but the fence is in a dump; the fence stays empty in a copy, which keeps the copy silent.
SELECT pg_catalog.pg_extension_config_dump('command_ledger.destination', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.command_type', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.command', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.command_event', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.approval_request', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.approval', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.outbox', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.lane', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.reconciliation_case', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.inbox', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.access', '');
SELECT pg_catalog.pg_extension_config_dump('command_ledger.relay_fence', 'WHERE false');
