-- From 0.1.0 to 0.2.0: since when the owner of an open question works on it.

ALTER TABLE command_ledger.reconciliation_case ADD COLUMN assigned_at timestamptz;
COMMENT ON COLUMN command_ledger.reconciliation_case.assigned_at IS
    'Since when its owner works on it; NULL while nobody does.';

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
                   JOIN command_ledger.live_command n ON n.tenant OPERATOR(pg_catalog.=) l.tenant AND n.idempotency_key OPERATOR(pg_catalog.=) l.idempotency_key
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
