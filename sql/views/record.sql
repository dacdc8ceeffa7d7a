-- Views. Each shows what the reader may read (may_read, or may_read_all for those who may read everything) and is a
-- security barrier. The queues are driven by the small tables (outbox, open cases, approval requests) and reach the
-- record by its key; none of them scans the table of commands.

CREATE VIEW command_ledger.live_command AS
    SELECT c.tenant, c.idempotency_key, c.command_type, c.type_version, t.destination,
           CASE WHEN c.tenant OPERATOR(pg_catalog.=) 'default' AND pg_catalog.strpos(c.idempotency_key, '/') OPERATOR(pg_catalog.=) 0 THEN c.idempotency_key
                ELSE pg_catalog.concat(c.tenant, '/', c.idempotency_key) END AS destination_key,
           CASE WHEN o.idempotency_key IS NULL THEN c.status
                WHEN o.lease_token IS NULL THEN 'approved'::command_ledger.command_status
                ELSE 'dispatched'::command_ledger.command_status END AS status,
           CASE WHEN o.idempotency_key IS NULL THEN c.attempt ELSE o.attempt END AS attempt,
           CASE WHEN o.idempotency_key IS NULL THEN c.counted_attempts ELSE o.counted_attempts END AS counted_attempts,
           CASE WHEN o.idempotency_key IS NULL THEN c.maybe_sent ELSE o.maybe_sent END AS maybe_sent,
           CASE WHEN o.idempotency_key IS NULL THEN c.error ELSE o.error END AS error,
           CASE WHEN o.idempotency_key IS NULL THEN c.error_message ELSE o.error_message END AS error_message,
           CASE WHEN o.idempotency_key IS NULL THEN c.first_sent_at ELSE o.first_sent_at END AS first_sent_at,
           CASE WHEN o.idempotency_key IS NULL THEN c.journal_seq ELSE o.journal_seq END AS journal_seq,
           CASE WHEN o.idempotency_key IS NULL THEN c.open_case ELSE o.open_case END AS open_case,
           o.idempotency_key IS NOT NULL AS queued, o.due_at, o.approved_until, o.lease_expires_at, o.worker,
           c.registered_at, c.updated_at, c.not_before, c.deadline, c.redacted_at, c.lookalike_until,
           c.approvals_required, c.params_hash, c.intent_hash, c.proposer, c.run_id, c.step_id, c.workflow_version,
           c.ordering_key, c.destination_record_id
      FROM command_ledger.command c
      LEFT JOIN command_ledger.outbox o ON o.tenant OPERATOR(pg_catalog.=) c.tenant AND o.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key
      LEFT JOIN command_ledger.command_type t ON t.name OPERATOR(pg_catalog.=) c.command_type AND t.version OPERATOR(pg_catalog.=) c.type_version;
COMMENT ON VIEW command_ledger.live_command IS
    'Internal, granted to nobody: the record with its live state. While an outbox row exists, state, attempt and journal stand there; otherwise in the command row. The other views build on it.';

CREATE VIEW command_ledger.timeline WITH (security_barrier) AS
    SELECT c.tenant, c.idempotency_key, 0 AS seq, c.registered_at AS at, 'register'::pg_catalog.text AS kind,
           NULL::command_ledger.command_status AS from_status,
           coalesce((SELECT e.from_status FROM command_ledger.command_event e
                      WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key AND e.seq OPERATOR(pg_catalog.=) 1),
                    c.status) AS to_status,
           0 AS attempt, c.proposer AS actor, NULL::pg_catalog.text AS stated_actor, NULL::pg_catalog.jsonb AS detail
      FROM command_ledger.command c
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type)
    UNION ALL
    SELECT e.tenant, e.idempotency_key, e.seq, e.at, e.kind, e.from_status, e.to_status, e.attempt, e.actor,
           e.stated_actor, e.detail OPERATOR(pg_catalog.-) 'lease'
      FROM command_ledger.command_event e
     WHERE (SELECT command_ledger.may_read_all())
        OR command_ledger.may_read(e.tenant, (SELECT c.command_type FROM command_ledger.command c
            WHERE c.tenant OPERATOR(pg_catalog.=) e.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) e.idempotency_key));
COMMENT ON VIEW command_ledger.timeline IS
    'The journal of every command, entry 0 (the registration) included. Example: SELECT at, kind, from_status, to_status, attempt, actor, detail FROM command_ledger.timeline WHERE tenant = ''default'' AND idempotency_key = ''order-7'' ORDER BY seq;';
COMMENT ON COLUMN command_ledger.timeline.seq IS 'Position in the command''s journal, from 0.';
COMMENT ON COLUMN command_ledger.timeline.kind IS
    'What happened: register, approve, claim, not_sent, confirm, uncertain, lookup_found, reconcile_found and so on.';
COMMENT ON COLUMN command_ledger.timeline.attempt IS 'The attempt that the entry speaks of; 0 before the first one.';
COMMENT ON COLUMN command_ledger.timeline.actor IS 'The database role that acted, or the relay.';
COMMENT ON COLUMN command_ledger.timeline.stated_actor IS 'The person that the role said it acted for.';
COMMENT ON COLUMN command_ledger.timeline.detail IS 'Particulars: hashes, digests, statuses, record ids, reasons; never a payload.';

CREATE VIEW command_ledger.attempts WITH (security_barrier) AS
    SELECT e.tenant, e.idempotency_key, c.command_type, c.destination, e.attempt, e.detail OPERATOR(pg_catalog.->>) 'worker' AS worker,
           e.actor, e.at AS started_at, z.at AS ended_at, z.at OPERATOR(pg_catalog.-) e.at AS duration,
           CASE WHEN z.seq IS NULL THEN 'in_flight' ELSE z.kind END AS kind, z.to_status,
           CASE WHEN e.attempt OPERATOR(pg_catalog.=) c.attempt THEN c.error END AS error,
           CASE WHEN e.attempt OPERATOR(pg_catalog.=) c.attempt THEN c.error_message END AS error_message,
           e.detail OPERATOR(pg_catalog.->>) 'request' AS request_digest, z.detail OPERATOR(pg_catalog.->>) 'transport' AS transport,
           z.detail OPERATOR(pg_catalog.-) 'lease' AS answer,
           CASE WHEN z.seq IS NULL THEN c.lease_expires_at END AS lease_expires_at
      FROM command_ledger.command_event e
      JOIN command_ledger.live_command c ON c.tenant OPERATOR(pg_catalog.=) e.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) e.idempotency_key
      LEFT JOIN LATERAL (
            SELECT n.seq, n.at, n.kind, n.to_status, n.detail FROM command_ledger.command_event n
             WHERE n.tenant OPERATOR(pg_catalog.=) e.tenant AND n.idempotency_key OPERATOR(pg_catalog.=) e.idempotency_key AND n.seq OPERATOR(pg_catalog.>) e.seq
               AND n.from_status OPERATOR(pg_catalog.=) 'dispatched' AND n.to_status OPERATOR(pg_catalog.<>) 'dispatched'
             ORDER BY n.seq LIMIT 1) z ON true
     WHERE e.kind OPERATOR(pg_catalog.=) 'claim'
       AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type));
COMMENT ON VIEW command_ledger.attempts IS
    'Every attempt: who made it, when, and how it ended. Example: SELECT attempt, started_at, duration, kind, error_message FROM command_ledger.attempts WHERE tenant = ''default'' AND idempotency_key = ''order-7'' ORDER BY attempt;';
COMMENT ON COLUMN command_ledger.attempts.kind IS
    'How it ended, as the journal calls it: confirm, not_sent, safe_repeat, refused, uncertain, lease_over, release and so on; in_flight while it runs.';
COMMENT ON COLUMN command_ledger.attempts.error IS 'The class of error of the last attempt; earlier ones have it in answer and kind.';
COMMENT ON COLUMN command_ledger.attempts.request_digest IS 'SHA-256 of what was sent; equal for all attempts that may have had an effect.';
COMMENT ON COLUMN command_ledger.attempts.transport IS
    'Where no answer came: refused, unresolved, tls, connect_timeout, proxy, connection_lost, invalid, not_allowed, no_secret or withheld (nothing was sent); reset, timeout, unreadable, stopped or lease_over (it may have been).';
COMMENT ON COLUMN command_ledger.attempts.answer IS 'Facts of the answer (status, digests), never its content.';

