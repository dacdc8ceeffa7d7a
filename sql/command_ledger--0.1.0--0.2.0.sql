-- From 0.1.0 to 0.2.0: since when the owner of an open question works on it; what is under way is not among what is due.

ALTER TABLE command_ledger.reconciliation_case ADD COLUMN assigned_at timestamptz;
COMMENT ON COLUMN command_ledger.reconciliation_case.assigned_at IS
    'Since when its owner works on it; NULL while nobody does.';

-- A claim writes one entry less, and steps over none that is under way.
DROP INDEX command_ledger.outbox_due;
CREATE INDEX outbox_due ON command_ledger.outbox (destination, due_at) WHERE lease_token IS NULL;

-- Replaced, not dropped: what grant_access() gave stays.
CREATE OR REPLACE VIEW command_ledger.open_question AS
    SELECT c.tenant, c.idempotency_key, c.command_type, c.destination, c.destination_key, c.status, r.reason,
           command_ledger.reason_in_words(r.reason) AS reason_in_words, r.opened_at,
           pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) r.opened_at AS age, r.owner, c.attempt, c.maybe_sent,
           (SELECT e.at FROM command_ledger.command_event e
             WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key AND e.kind OPERATOR(pg_catalog.=) 'claim'
             ORDER BY e.seq DESC LIMIT 1) AS last_sent_at,
           CASE WHEN r.last_lookup IS NOT NULL THEN pg_catalog.concat(
                r.last_lookup OPERATOR(pg_catalog.->>) 'answer', ': ' OPERATOR(pg_catalog.||) (r.last_lookup OPERATOR(pg_catalog.->>) 'why'), ' (' OPERATOR(pg_catalog.||) (r.last_lookup OPERATOR(pg_catalog.->>) 'transport') OPERATOR(pg_catalog.||) ')',
                ' (HTTP ' OPERATOR(pg_catalog.||) CASE WHEN (r.last_lookup OPERATOR(pg_catalog.->>) 'http_status') OPERATOR(pg_catalog.<>) '0' THEN r.last_lookup OPERATOR(pg_catalog.->>) 'http_status' END OPERATOR(pg_catalog.||) ')',
                ' at ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', pg_catalog.to_timestamp(
                    (r.last_lookup OPERATOR(pg_catalog.->>) 'at_us')::pg_catalog.float8 OPERATOR(pg_catalog./) 1000000))::pg_catalog.text)
           END AS last_lookup,
           r.lookups_done, r.next_lookup_at,
           CASE WHEN r.next_lookup_at IS NOT NULL
                THEN pg_catalog.format('The ledger asks %s again by itself at %s. Step in only if you know more.',
                                       c.destination, pg_catalog.date_trunc('second', r.next_lookup_at))
                WHEN c.status OPERATOR(pg_catalog.=) ANY (ARRAY['confirmed', 'cancelled']::command_ledger.command_status[])
                THEN pg_catalog.format('Look at %s for what else was created under the key %s, undo it there if it must not be, then close the case.',
                                       c.destination, c.destination_key)
                WHEN s.finding OPERATOR(pg_catalog.=) 'not_found'
                THEN pg_catalog.format('The lookups found nothing. If %s really has no record with the key %s, say so; then it may be sent again.',
                                       c.destination, c.destination_key)
                WHEN s.finding OPERATOR(pg_catalog.=) 'abandon'
                THEN 'Nothing is on its way. Give this command up, and register the intent anew with a new key.'
                ELSE pg_catalog.format('Search %s for the key %s. There: give its record id. Not there: say not_found instead of found.',
                                       c.destination, c.destination_key)
           END AS advice,
           CASE WHEN s.finding OPERATOR(pg_catalog.=) 'found' THEN pg_catalog.format(
                    'SELECT command_ledger.reconcile(%L, ''found'', destination_record_id => %L, expected_attempt => %s, tenant => %L);',
                    c.idempotency_key, coalesce(s.record_id, '…'), c.attempt, c.tenant)
                ELSE pg_catalog.format('SELECT command_ledger.reconcile(%L, %L, expected_attempt => %s, tenant => %L);',
                    c.idempotency_key, s.finding, c.attempt, c.tenant)
           END AS suggested_next_step,
           r.assigned_at
      FROM command_ledger.reconciliation_case r
      JOIN command_ledger.live_command c ON c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key
      CROSS JOIN LATERAL (
            SELECT CASE WHEN c.status OPERATOR(pg_catalog.=) ANY (ARRAY['confirmed', 'cancelled']::command_ledger.command_status[]) THEN 'found'
                        WHEN r.reason OPERATOR(pg_catalog.=) ANY (ARRAY['lookup_absent', 'approval_missing']) THEN 'not_found'
                        WHEN r.reason OPERATOR(pg_catalog.=) ANY (ARRAY['tampered', 'request_changed']) AND NOT c.maybe_sent THEN 'abandon'
                        ELSE 'found' END AS finding,
                   coalesce(c.destination_record_id,
                            (SELECT e.detail OPERATOR(pg_catalog.->>) 'record_id' FROM command_ledger.command_event e
                              WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key
                                AND (e.detail OPERATOR(pg_catalog.->>) 'record_id') IS NOT NULL
                              ORDER BY e.seq DESC LIMIT 1)) AS record_id
            OFFSET 0) s
     WHERE r.closed_at IS NULL;

CREATE OR REPLACE VIEW command_ledger.reconciliation_queue WITH (security_barrier) AS
    SELECT q.tenant, q.idempotency_key, q.command_type, q.destination, q.destination_key, q.status, q.reason,
           q.reason_in_words, q.opened_at, q.age, q.owner, q.attempt, q.maybe_sent, q.last_sent_at, q.last_lookup,
           q.lookups_done, q.next_lookup_at, q.advice, q.suggested_next_step, q.assigned_at
      FROM command_ledger.open_question q
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(q.tenant, q.command_type);
COMMENT ON COLUMN command_ledger.reconciliation_queue.assigned_at IS
    'Since when its owner works on it: a question that somebody took long ago is as open as one that nobody took.';

-- What is uncertain is found by what is open, without a look at every command.
CREATE OR REPLACE VIEW command_ledger.measures WITH (security_barrier) AS
    SELECT r.disturbed_runs, r.recovered_runs,
           CASE WHEN r.ended_runs OPERATOR(pg_catalog.>) 0 THEN r.recovered_runs::pg_catalog.float8 OPERATOR(pg_catalog./) r.ended_runs::pg_catalog.float8 END AS recovered_share,
           d.duplicate_records, u.uncertain,
           pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) u.uncertain_since AS oldest_uncertain,
           c.confirmed, c.attempts_per_confirmed, c.most_attempts, k.questions, k.closed_by_person,
           k.median_time_in_reconciliation, k.longest_time_in_reconciliation, a.approvals_lapsed
      FROM (SELECT pg_catalog.count(*) FILTER (WHERE n.disturbed) AS disturbed_runs,
                   pg_catalog.count(*) FILTER (WHERE n.recovered_without_person IS NOT NULL) AS ended_runs,
                   pg_catalog.count(*) FILTER (WHERE n.recovered_without_person) AS recovered_runs
              FROM command_ledger.runs n) r
     CROSS JOIN (SELECT pg_catalog.count(*) AS duplicate_records FROM command_ledger.duplicate_records n
                  WHERE n.kind OPERATOR(pg_catalog.=) 'two_records_of_one_command') d
     CROSS JOIN (SELECT pg_catalog.count(*) AS uncertain, pg_catalog.min(coalesce(n.first_sent_at, n.registered_at)) AS uncertain_since
                   -- What may have been sent and is not settled has a row in one of these.
                   FROM (SELECT r.tenant, r.idempotency_key FROM command_ledger.reconciliation_case r WHERE r.closed_at IS NULL
                         UNION
                         SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o WHERE o.maybe_sent
                         UNION
                         SELECT q.tenant, q.idempotency_key FROM command_ledger.approval_request q) l
                  CROSS JOIN LATERAL (
                        SELECT c.tenant, c.command_type, c.maybe_sent, c.status, c.first_sent_at, c.registered_at
                          FROM command_ledger.live_command c
                         WHERE c.tenant OPERATOR(pg_catalog.=) l.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) l.idempotency_key OFFSET 0) n
                  WHERE n.maybe_sent AND n.status OPERATOR(pg_catalog.<>) 'confirmed'
                    AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(n.tenant, n.command_type))) u
     CROSS JOIN (SELECT pg_catalog.count(*) AS confirmed, pg_catalog.avg(n.attempt) AS attempts_per_confirmed,
                        pg_catalog.max(n.attempt) AS most_attempts
                   FROM command_ledger.command n
                  WHERE n.status OPERATOR(pg_catalog.=) 'confirmed'
                    AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(n.tenant, n.command_type))) c
     CROSS JOIN (SELECT pg_catalog.count(*) AS questions,
                        pg_catalog.count(*) FILTER (WHERE n.finding OPERATOR(pg_catalog.=) ANY (ARRAY['found', 'not_found', 'abandon'])) AS closed_by_person,
                        pg_catalog.percentile_disc(0.5) WITHIN GROUP (ORDER BY n.closed_at OPERATOR(pg_catalog.-) n.opened_at) AS median_time_in_reconciliation,
                        pg_catalog.max(n.closed_at OPERATOR(pg_catalog.-) n.opened_at) AS longest_time_in_reconciliation
                   FROM command_ledger.reconciliation_case n
                   JOIN command_ledger.command x ON x.tenant OPERATOR(pg_catalog.=) n.tenant AND x.idempotency_key OPERATOR(pg_catalog.=) n.idempotency_key
                  WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(x.tenant, x.command_type)) k
     CROSS JOIN (SELECT pg_catalog.count(*) AS approvals_lapsed FROM command_ledger.timeline n
                  WHERE n.kind OPERATOR(pg_catalog.=) 'approval_lapsed') a;
COMMENT ON VIEW command_ledger.measures IS
    'One row about everything that the reader may read and that retention has left: how many disturbed workflows recovered without a person, how many records are too many, what is not known. Reads the commands of all runs, and all commands and journals for the columns about those (confirmed, attempts, approvals_lapsed): for a report, not for a dashboard. Example: SELECT recovered_share, duplicate_records, uncertain, oldest_uncertain FROM command_ledger.measures;';

-- Journals of one claim and its confirmation are not read.
CREATE OR REPLACE VIEW command_ledger.runs WITH (security_barrier) AS
    SELECT r.tenant, r.run_id, r.workflow_version, r.steps, r.confirmed, r.failed, r.cancelled, r.still_open,
           r.need_person,
           CASE WHEN r.need_person OPERATOR(pg_catalog.>) 0 THEN 'needs_person'
                WHEN r.still_open OPERATOR(pg_catalog.>) 0 THEN 'running'
                WHEN r.failed OPERATOR(pg_catalog.>) 0 THEN 'failed'
                WHEN r.confirmed OPERATOR(pg_catalog.=) 0 THEN 'cancelled'
                ELSE 'done' END AS state,
           r.disturbed,
           CASE WHEN r.disturbed AND r.still_open OPERATOR(pg_catalog.=) 0 AND r.need_person OPERATOR(pg_catalog.=) 0
                THEN r.failed OPERATOR(pg_catalog.=) 0 AND NOT r.by_person END AS recovered_without_person,
           r.started_at, r.updated_at
      FROM (SELECT c.tenant, c.run_id, pg_catalog.max(c.workflow_version) AS workflow_version,
                   pg_catalog.count(*) AS steps,
                   pg_catalog.count(*) FILTER (WHERE c.status OPERATOR(pg_catalog.=) 'confirmed') AS confirmed,
                   pg_catalog.count(*) FILTER (WHERE c.status OPERATOR(pg_catalog.=) 'failed') AS failed,
                   pg_catalog.count(*) FILTER (WHERE c.status OPERATOR(pg_catalog.=) 'cancelled') AS cancelled,
                   pg_catalog.count(*) FILTER (WHERE c.status OPERATOR(pg_catalog.=) ANY (ARRAY['planned', 'approved', 'dispatched', 'needs_reconciliation']::command_ledger.command_status[])) AS still_open,
                   pg_catalog.count(*) FILTER (WHERE q.awaits_person) AS need_person,
                   pg_catalog.bool_or(j.disturbed) AS disturbed,
                   pg_catalog.bool_or(j.by_person) AS by_person,
                   pg_catalog.min(c.registered_at) AS started_at, pg_catalog.max(c.updated_at) AS updated_at
              FROM command_ledger.live_command c
             CROSS JOIN LATERAL (
                   SELECT coalesce(pg_catalog.bool_or(e.kind OPERATOR(pg_catalog.=) ANY (ARRAY['not_sent', 'safe_repeat', 'uncertain',
                                'lease_over', 'budget_over', 'window_over', 'request_changed', 'tampered', 'fence', 'adopted',
                                'lookup_found', 'lookup_absent', 'lookup_unclear', 'late_success', 'late_failure',
                                'duplicate_success'])), false) AS disturbed,
                          coalesce(pg_catalog.bool_or(e.kind OPERATOR(pg_catalog.=) ANY (ARRAY['reconcile_found', 'reconcile_not_found',
                                'abandon', 'retry'])), false) AS by_person
                     FROM command_ledger.command_event e
                    WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key
                      -- One claim and its confirmation: nobody has to read that journal.
                      AND NOT (c.status OPERATOR(pg_catalog.=) 'confirmed' AND c.attempt OPERATOR(pg_catalog.=) 1 AND c.journal_seq OPERATOR(pg_catalog.=) 2)) j
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM command_ledger.reconciliation_case k
                                   WHERE k.tenant OPERATOR(pg_catalog.=) c.tenant AND k.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key
                                     AND k.closed_at IS NULL AND k.next_lookup_at IS NULL) AS awaits_person) q
             WHERE c.run_id IS NOT NULL
               AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type))
             GROUP BY c.tenant, c.run_id) r;

-- Only contents that occur twice are looked at.
CREATE OR REPLACE VIEW command_ledger.lookalikes WITH (security_barrier) AS
    SELECT n.tenant, n.command_type, n.idempotency_key, n.status, n.registered_at, n.proposer, n.run_id,
           f.idempotency_key AS earlier_key, f.status AS earlier_status, f.registered_at AS earlier_registered_at,
           f.proposer AS earlier_proposer, f.run_id AS earlier_run_id, n.registered_at OPERATOR(pg_catalog.-) f.registered_at AS apart
      -- The contents that occur more than once, from their index alone; then the pairs; then the two of each pair.
      FROM (SELECT h.params_hash FROM command_ledger.command h WHERE h.lookalike_until IS NOT NULL
             GROUP BY h.params_hash HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1) s
     CROSS JOIN LATERAL (
           SELECT p.tenant, p.idempotency_key AS earlier_key, o.idempotency_key AS later_key
             FROM command_ledger.command p
             JOIN command_ledger.command o ON o.params_hash OPERATOR(pg_catalog.=) s.params_hash AND o.tenant OPERATOR(pg_catalog.=) p.tenant
                                          AND o.command_type OPERATOR(pg_catalog.=) p.command_type AND o.idempotency_key OPERATOR(pg_catalog.<>) p.idempotency_key
                                          AND o.lookalike_until IS NOT NULL
                                          AND o.registered_at OPERATOR(pg_catalog.>=) p.registered_at AND o.registered_at OPERATOR(pg_catalog.<) p.lookalike_until
            WHERE p.params_hash OPERATOR(pg_catalog.=) s.params_hash AND p.lookalike_until IS NOT NULL
              AND (o.registered_at OPERATOR(pg_catalog.>) p.registered_at OR o.idempotency_key OPERATOR(pg_catalog.>) p.idempotency_key)
              AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(p.tenant, p.command_type))
           OFFSET 0) l
     CROSS JOIN LATERAL (
           SELECT c.idempotency_key, c.status, c.registered_at, c.proposer, c.run_id FROM command_ledger.live_command c
            WHERE c.tenant OPERATOR(pg_catalog.=) l.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) l.earlier_key OFFSET 0) f
     CROSS JOIN LATERAL (
           SELECT c.tenant, c.command_type, c.idempotency_key, c.status, c.registered_at, c.proposer, c.run_id FROM command_ledger.live_command c
            WHERE c.tenant OPERATOR(pg_catalog.=) l.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) l.later_key OFFSET 0) n;
COMMENT ON VIEW command_ledger.lookalikes IS
    'Pairs of commands with the same content under two keys within the look-alike window of their type: one intent under two names, or one that was meant twice (distinct_from). Goes through an index of all commands whose type has such a window: for an audit, not for a dashboard. Example: SELECT idempotency_key, earlier_key, apart, proposer FROM command_ledger.lookalikes ORDER BY registered_at DESC;';

-- Questions reach their command by its key.
CREATE OR REPLACE VIEW command_ledger.destination_status WITH (security_barrier) AS
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

CREATE OR REPLACE VIEW command_ledger.metrics WITH (security_barrier) AS
    WITH s AS (SELECT d.destination, d.queued, d.due, d.in_flight, d.maybe_sent, d.oldest_overdue, d.paused_at, d.breaker
                 FROM command_ledger.destination_status d),
    -- May have had an effect that nothing confirms: open questions, and repeats that wait in the outbox.
    uncertain AS (
        SELECT c.tenant, c.idempotency_key, c.destination, coalesce(c.first_sent_at, c.registered_at) AS since
          FROM (SELECT r.tenant, r.idempotency_key FROM command_ledger.reconciliation_case r WHERE r.closed_at IS NULL
                UNION
                SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o WHERE o.maybe_sent) k
         CROSS JOIN LATERAL (
               SELECT n.tenant, n.idempotency_key, n.command_type, n.destination, n.maybe_sent, n.first_sent_at, n.registered_at
                 FROM command_ledger.live_command n
                WHERE n.tenant OPERATOR(pg_catalog.=) k.tenant AND n.idempotency_key OPERATOR(pg_catalog.=) k.idempotency_key OFFSET 0) c
         WHERE c.maybe_sent
           AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type))),
    questions AS (
        SELECT r.reason, r.opened_at, r.next_lookup_at, t.destination
          FROM command_ledger.reconciliation_case r
         CROSS JOIN LATERAL (SELECT o.tenant, o.command_type, o.type_version FROM command_ledger.command o
                              WHERE o.tenant OPERATOR(pg_catalog.=) r.tenant AND o.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key OFFSET 0) c
          JOIN command_ledger.command_type t ON t.name OPERATOR(pg_catalog.=) c.command_type AND t.version OPERATOR(pg_catalog.=) c.type_version
         WHERE r.closed_at IS NULL
           AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type))),
    -- The last questions that were closed.
    closed AS (
        SELECT r.tenant, r.idempotency_key, c.run_id,
               coalesce(r.finding OPERATOR(pg_catalog.=) ANY (ARRAY['found', 'not_found', 'abandon']), false) AS by_person, r.closed_at OPERATOR(pg_catalog.-) r.opened_at AS took
          FROM (SELECT x.tenant, x.idempotency_key, x.finding, x.opened_at, x.closed_at
                  FROM command_ledger.reconciliation_case x WHERE x.closed_at IS NOT NULL
                 ORDER BY x.closed_at DESC LIMIT 1000) r
          JOIN command_ledger.command c ON c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key
         WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type)),
    runs AS (
        SELECT x.state, x.recovered_without_person
          FROM (SELECT k.tenant, k.run_id FROM closed k WHERE k.run_id IS NOT NULL
                UNION
                SELECT o.tenant, o.run_id
                  FROM (SELECT r.tenant, r.idempotency_key FROM command_ledger.reconciliation_case r
                         WHERE r.closed_at IS NULL ORDER BY r.opened_at LIMIT 1000) q
                  JOIN command_ledger.command o ON o.tenant OPERATOR(pg_catalog.=) q.tenant AND o.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key
                 WHERE o.run_id IS NOT NULL) u
         CROSS JOIN LATERAL (
               SELECT n.state, n.recovered_without_person FROM command_ledger.runs n
                WHERE n.tenant OPERATOR(pg_catalog.=) u.tenant AND n.run_id OPERATOR(pg_catalog.=) u.run_id OFFSET 0) x),
    tables AS (
        SELECT t.relid, t.relname::pg_catalog.text AS name, t.n_live_tup AS live, t.n_dead_tup AS dead
          FROM pg_catalog.pg_stat_all_tables t
         WHERE t.schemaname OPERATOR(pg_catalog.=) 'command_ledger' AND (SELECT command_ledger.may_read_all()))
    SELECT 'command_ledger_queued'::pg_catalog.text AS name,
           pg_catalog.jsonb_build_object('destination', s.destination, 'state', v.state) AS labels,
           v.count::pg_catalog.float8 AS value
      FROM s
     CROSS JOIN LATERAL (VALUES ('due', s.due), ('in_flight', s.in_flight),
                                ('waiting', s.queued OPERATOR(pg_catalog.-) s.due OPERATOR(pg_catalog.-) s.in_flight)) AS v (state, count)
    UNION ALL
    SELECT 'command_ledger_oldest_due_seconds', pg_catalog.jsonb_build_object('destination', s.destination),
           coalesce(pg_catalog.date_part('epoch', s.oldest_overdue), 0)
      FROM s
    UNION ALL
    SELECT 'command_ledger_maybe_sent', pg_catalog.jsonb_build_object('destination', s.destination), s.maybe_sent::pg_catalog.float8
      FROM s
    UNION ALL
    SELECT 'command_ledger_destination_paused', pg_catalog.jsonb_build_object('destination', s.destination),
           CASE WHEN s.paused_at IS NULL THEN 0 ELSE 1 END::pg_catalog.float8
      FROM s
    UNION ALL
    SELECT 'command_ledger_breaker_open', pg_catalog.jsonb_build_object('destination', s.destination),
           CASE WHEN s.breaker OPERATOR(pg_catalog.=) ANY (ARRAY['open', 'half_open']) THEN 1 ELSE 0 END::pg_catalog.float8
      FROM s
    UNION ALL
    SELECT 'command_ledger_open_attempts', pg_catalog.jsonb_build_object('destination', s.destination),
           coalesce((SELECT pg_catalog.max(o.counted_attempts) FROM command_ledger.outbox o WHERE o.destination OPERATOR(pg_catalog.=) s.destination
                AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(o.tenant, (SELECT c.command_type
                      FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) o.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key)))),
                    0)::pg_catalog.float8
      FROM s
    UNION ALL
    SELECT 'command_ledger_uncertain', pg_catalog.jsonb_build_object('destination', s.destination),
           (SELECT pg_catalog.count(*) FROM uncertain u WHERE u.destination OPERATOR(pg_catalog.=) s.destination)::pg_catalog.float8
      FROM s
    UNION ALL
    SELECT 'command_ledger_oldest_uncertain_seconds', '{}'::pg_catalog.jsonb,
           coalesce(pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(u.since)), 0)
      FROM uncertain u
    UNION ALL
    SELECT 'command_ledger_open_cases', pg_catalog.jsonb_build_object('destination', q.destination, 'reason', q.reason),
           pg_catalog.count(*)::pg_catalog.float8
      FROM questions q GROUP BY q.destination, q.reason
    UNION ALL
    SELECT 'command_ledger_cases_for_people', '{}'::pg_catalog.jsonb,
           pg_catalog.count(*) FILTER (WHERE q.next_lookup_at IS NULL)::pg_catalog.float8
      FROM questions q
    UNION ALL
    SELECT 'command_ledger_oldest_case_seconds', '{}'::pg_catalog.jsonb,
           coalesce(pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(q.opened_at)), 0)
      FROM questions q
    UNION ALL
    SELECT 'command_ledger_closed_cases', pg_catalog.jsonb_build_object('by', v.by), v.count::pg_catalog.float8
      FROM (SELECT pg_catalog.count(*) FILTER (WHERE NOT k.by_person) AS ledger,
                   pg_catalog.count(*) FILTER (WHERE k.by_person) AS person FROM closed k) n
     CROSS JOIN LATERAL (VALUES ('ledger', n.ledger), ('person', n.person)) AS v (by, count)
    UNION ALL
    SELECT 'command_ledger_reconciliation_seconds', pg_catalog.jsonb_build_object('quantile', v.quantile),
           coalesce(pg_catalog.date_part('epoch', v.took), 0)
      FROM (SELECT pg_catalog.percentile_disc(0.5) WITHIN GROUP (ORDER BY k.took) AS half,
                   pg_catalog.percentile_disc(0.95) WITHIN GROUP (ORDER BY k.took) AS most,
                   pg_catalog.max(k.took) AS longest FROM closed k) n
     CROSS JOIN LATERAL (VALUES ('0.5', n.half), ('0.95', n.most), ('1', n.longest)) AS v (quantile, took)
    UNION ALL
    SELECT 'command_ledger_disturbed_runs', pg_catalog.jsonb_build_object('state', v.state), v.count::pg_catalog.float8
      FROM (SELECT pg_catalog.count(*) FILTER (WHERE r.recovered_without_person) AS recovered,
                   pg_catalog.count(*) FILTER (WHERE NOT r.recovered_without_person) AS otherwise,
                   pg_catalog.count(*) FILTER (WHERE r.recovered_without_person IS NULL) AS open FROM runs r) n
     CROSS JOIN LATERAL (VALUES ('recovered', n.recovered), ('not_recovered', n.otherwise), ('open', n.open)) AS v (state, count)
    UNION ALL
    SELECT 'command_ledger_duplicate_records', pg_catalog.jsonb_build_object('state', v.state), v.count::pg_catalog.float8
      FROM (SELECT pg_catalog.count(*) FILTER (WHERE r.closed_at IS NULL) AS open,
                   pg_catalog.count(*) FILTER (WHERE r.closed_at IS NOT NULL) AS closed
              FROM command_ledger.reconciliation_case r
             WHERE r.reason OPERATOR(pg_catalog.=) ANY (ARRAY['duplicate_success', 'duplicate_possible', 'lookup_ambiguous'])
               AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(r.tenant, (SELECT c.command_type
                      FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key)))) n
     CROSS JOIN LATERAL (VALUES ('open', n.open), ('closed', n.closed)) AS v (state, count)
    UNION ALL
    SELECT v.name, '{}'::pg_catalog.jsonb, v.value
      FROM (SELECT pg_catalog.count(*)::pg_catalog.float8 AS waiting,
                   coalesce(pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(r.requested_at)), 0) AS oldest,
                   pg_catalog.count(*) FILTER (WHERE EXISTS (SELECT FROM command_ledger.approval a
                        WHERE a.tenant OPERATOR(pg_catalog.=) r.tenant AND a.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key AND a.revoked_at IS NULL
                          AND a.expires_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()))::pg_catalog.float8 AS lapsed
              FROM command_ledger.approval_request r
             WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(r.tenant, (SELECT c.command_type
                      FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key))) n
     CROSS JOIN LATERAL (VALUES ('command_ledger_approvals_waiting', n.waiting), ('command_ledger_oldest_approval_seconds', n.oldest),
                                ('command_ledger_approvals_lapsed', n.lapsed)) AS v (name, value)
    UNION ALL
    SELECT 'command_ledger_sends', '{}'::pg_catalog.jsonb,
           CASE WHEN command_ledger.fence_state() OPERATOR(pg_catalog.=) 'open' THEN 1 ELSE 0 END::pg_catalog.float8
    UNION ALL
    SELECT CASE WHEN n.name OPERATOR(pg_catalog.=) 'relay_attempts' THEN 'command_ledger_relay_attempts_total'
                WHEN n.name OPERATOR(pg_catalog.=) 'relay_ends' THEN 'command_ledger_relay_ends_total'
                WHEN n.name OPERATOR(pg_catalog.=) 'relay_attempt_us' THEN 'command_ledger_relay_attempt_seconds_total'
                ELSE 'command_ledger_prevented_total' END,
           CASE WHEN pg_catalog.starts_with(n.name, 'relay_') THEN '{}'::pg_catalog.jsonb
                ELSE pg_catalog.jsonb_build_object('what', n.name) END,
           CASE WHEN n.name OPERATOR(pg_catalog.=) 'relay_attempt_us' THEN n.value::pg_catalog.float8 OPERATOR(pg_catalog./) 1000000::pg_catalog.float8
                ELSE n.value::pg_catalog.float8 END
      FROM command_ledger.counters() n
    UNION ALL
    SELECT v.name, pg_catalog.jsonb_build_object('table', t.name), v.value
      FROM tables t
     CROSS JOIN LATERAL (VALUES ('command_ledger_table_bytes', pg_catalog.pg_total_relation_size(t.relid)::pg_catalog.float8),
                                ('command_ledger_live_rows', t.live::pg_catalog.float8),
                                ('command_ledger_dead_rows', t.dead::pg_catalog.float8)) AS v (name, value);
