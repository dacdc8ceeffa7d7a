-- Figures. metrics is for a monitor that asks every few seconds: the small tables, shared memory, and the last 1,000
-- closed questions through an index. measures is for a report: it reads all runs, and all commands where asked about them.

CREATE VIEW command_ledger.metrics WITH (security_barrier) AS
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
COMMENT ON VIEW command_ledger.metrics IS
    'Figures for a monitor that asks often: one row per figure and set of labels, limited to what the reader may read. Its cost follows the open work, not the number of commands. Example: SELECT name, labels, value FROM command_ledger.metrics;';
COMMENT ON COLUMN command_ledger.metrics.name IS
    'Names ending in _total only grow (since the server started, and only where the library is preloaded); all others are momentary. closed_cases, reconciliation_seconds and disturbed_runs are about the last 1,000 questions that were closed.';
COMMENT ON COLUMN command_ledger.metrics.labels IS 'What the figure is about: destination, state, reason, what, by, quantile, table.';
COMMENT ON COLUMN command_ledger.metrics.value IS
    'Counts, 0 or 1, bytes, or seconds where the name says so. An age is that of the oldest, 0 when there is none. command_ledger_sends: 1 while the fence is open, 0 while nothing is sent because this may be a copy.';

CREATE VIEW command_ledger.measures WITH (security_barrier) AS
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
COMMENT ON COLUMN command_ledger.measures.disturbed_runs IS 'Runs of which some attempt did not end with a plain answer; see runs.';
COMMENT ON COLUMN command_ledger.measures.recovered_runs IS 'Disturbed runs that ended without a failure and without a person.';
COMMENT ON COLUMN command_ledger.measures.recovered_share IS 'recovered_runs in all disturbed runs that have ended; NULL when there is none.';
COMMENT ON COLUMN command_ledger.measures.duplicate_records IS 'Commands of which the destination may hold a record too many; see duplicate_records.';
COMMENT ON COLUMN command_ledger.measures.uncertain IS 'Commands that may have had an effect which is neither confirmed nor excluded.';
COMMENT ON COLUMN command_ledger.measures.oldest_uncertain IS 'Since the first send of the oldest of them.';
COMMENT ON COLUMN command_ledger.measures.closed_by_person IS 'Questions that a person closed with reconcile(); the ledger closed the other closed ones.';
COMMENT ON COLUMN command_ledger.measures.approvals_lapsed IS 'How often a quorum broke because an approval ran out.';
