-- Destinations at a glance. See record.sql for the rules of all views.

CREATE VIEW command_ledger.destination_status WITH (security_barrier) AS
    SELECT d.name AS destination, d.config OPERATOR(pg_catalog.->>) 'transport' AS transport, d.revision, d.defined_at,
           CASE WHEN d.paused_at IS NOT NULL THEN 'paused'
                WHEN (SELECT command_ledger.fence_state()) OPERATOR(pg_catalog.=) ANY (ARRAY['unadopted', 'halted']) THEN 'fenced'
                WHEN (d.config OPERATOR(pg_catalog.->>) 'transport') OPERATOR(pg_catalog.<>) 'pull'
                     AND pg_catalog.current_setting('command_ledger.relay', true) OPERATOR(pg_catalog.=) 'off' THEN 'relay_off'
                WHEN p.breaker OPERATOR(pg_catalog.=) 'open' THEN 'breaker_open'
                WHEN p.breaker OPERATOR(pg_catalog.=) 'half_open' THEN 'breaker_half_open'
                WHEN w.in_flight OPERATOR(pg_catalog.>=) l.in_flight_limit THEN 'full'
                WHEN p.rate_full_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'rate_used_up'
                ELSE 'ready' END AS state,
           d.paused_at, d.paused_by,
           w.queued, w.due, w.in_flight, w.maybe_sent, w.oldest_due_at,
           pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) w.oldest_due_at AS oldest_overdue,
           l.in_flight_limit, p.breaker, p.breaker_failures, p.breaker_until,
           (d.config OPERATOR(pg_catalog.->) 'limits' OPERATOR(pg_catalog.->>) 'per_second')::pg_catalog.int8 AS per_second_limit,
           p.rate_full_until, x.last_error, x.last_error_message, x.last_error_at, k.open_cases, k.oldest_case_at
      FROM command_ledger.destination d
      CROSS JOIN LATERAL (
            SELECT coalesce((d.config OPERATOR(pg_catalog.->) 'limits' OPERATOR(pg_catalog.->>) 'in_flight')::pg_catalog.int8, 16) AS in_flight_limit) l
      LEFT JOIN LATERAL command_ledger.held_back(d.name) h ON true
      CROSS JOIN LATERAL (
            SELECT CASE WHEN d.config OPERATOR(pg_catalog.->) 'breaker' IS NULL
                             OR (d.config OPERATOR(pg_catalog.->>) 'transport') OPERATOR(pg_catalog.<>) 'http' THEN 'none'
                        WHEN h.failures IS NULL THEN 'unknown'
                        WHEN h.open_until IS NULL THEN 'closed'
                        WHEN h.open_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'open'
                        ELSE 'half_open' END AS breaker,
                   h.failures AS breaker_failures, h.open_until AS breaker_until, h.full_until AS rate_full_until) p
      LEFT JOIN LATERAL (
            SELECT o.error AS last_error, o.error_message AS last_error_message, e.at AS last_error_at
              FROM command_ledger.outbox o
              JOIN command_ledger.command c ON c.tenant OPERATOR(pg_catalog.=) o.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
              JOIN command_ledger.command_event e ON e.tenant OPERATOR(pg_catalog.=) o.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
                                                 AND e.seq OPERATOR(pg_catalog.=) o.journal_seq
             WHERE o.destination OPERATOR(pg_catalog.=) d.name AND o.error IS NOT NULL
               AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(o.tenant, c.command_type))
             ORDER BY e.at DESC LIMIT 1) x ON true
      CROSS JOIN LATERAL (
            SELECT pg_catalog.count(*) AS queued,
                   pg_catalog.count(*) FILTER (WHERE o.lease_token IS NULL AND o.due_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()) AS due,
                   pg_catalog.count(*) FILTER (WHERE o.lease_token IS NOT NULL) AS in_flight,
                   pg_catalog.count(*) FILTER (WHERE o.maybe_sent) AS maybe_sent,
                   pg_catalog.min(o.due_at) FILTER (WHERE o.lease_token IS NULL AND o.due_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()) AS oldest_due_at
              FROM command_ledger.outbox o
             WHERE o.destination OPERATOR(pg_catalog.=) d.name
               AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(o.tenant, (SELECT c.command_type
                       FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) o.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key)))) w
      CROSS JOIN LATERAL (
            SELECT pg_catalog.count(*) AS open_cases, pg_catalog.min(q.opened_at) AS oldest_case_at
              FROM command_ledger.reconciliation_case q
             -- By its key, whatever the planner believes: comparing all commands with all questions takes seconds.
             CROSS JOIN LATERAL (SELECT r.tenant, r.command_type, r.type_version FROM command_ledger.command r
                                  WHERE r.tenant OPERATOR(pg_catalog.=) q.tenant AND r.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key OFFSET 0) c
              JOIN command_ledger.command_type t ON t.name OPERATOR(pg_catalog.=) c.command_type AND t.version OPERATOR(pg_catalog.=) c.type_version
             WHERE q.closed_at IS NULL AND t.destination OPERATOR(pg_catalog.=) d.name
               AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type))) k
     WHERE (SELECT command_ledger.may_read_all())
        OR EXISTS (SELECT FROM command_ledger.command_type t
                    WHERE t.destination OPERATOR(pg_catalog.=) d.name AND command_ledger.may_read((SELECT command_ledger.current_tenant()), t.name));
COMMENT ON VIEW command_ledger.destination_status IS
    'Each destination and its open work, as far as the reader may read it; destinations are listed for those who may read everything, or some type of theirs in current_tenant(). Example: SELECT destination, state, due, in_flight, oldest_overdue, last_error, open_cases FROM command_ledger.destination_status;';
COMMENT ON COLUMN command_ledger.destination_status.state IS
    'The first that fits: paused, fenced, relay_off, breaker_open, breaker_half_open, full (in flight), rate_used_up, ready.';
COMMENT ON COLUMN command_ledger.destination_status.breaker IS
    'closed, open (nothing is sent before breaker_until), half_open (one probe at a time), none (not configured, or not an http destination: it works for these only), unknown (the library is not preloaded). It lives in the relay''s memory: each run of the relay starts with a closed one.';
COMMENT ON COLUMN command_ledger.destination_status.per_second_limit IS
    'Sends per second, kept by the relay for http destinations only; each run of the relay waits a second before it uses it.';
COMMENT ON COLUMN command_ledger.destination_status.rate_full_until IS 'When the rate permitted the next send, as last seen; in the past: it does.';
COMMENT ON COLUMN command_ledger.destination_status.last_error IS
    'Of the commands that are still queued, that of the one that met with an error last.';
COMMENT ON COLUMN command_ledger.destination_status.queued IS 'Approved and running commands; due and in_flight are among them.';
COMMENT ON COLUMN command_ledger.destination_status.due IS 'Those that could go now; dispatch_queue says what holds them.';
COMMENT ON COLUMN command_ledger.destination_status.maybe_sent IS 'Those of which an earlier attempt may have had an effect.';
COMMENT ON COLUMN command_ledger.destination_status.oldest_overdue IS 'How long the oldest due command has been due.';
COMMENT ON COLUMN command_ledger.destination_status.open_cases IS 'Open questions about its commands; see reconciliation_queue.';

