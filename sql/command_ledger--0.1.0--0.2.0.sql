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
