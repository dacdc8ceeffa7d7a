-- For the audit: workflow runs, records too many, look-alikes. See record.sql for the rules of all views.

CREATE VIEW command_ledger.runs WITH (security_barrier) AS
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
COMMENT ON VIEW command_ledger.runs IS
    'The commands of each workflow run together (run_id as given to register). Name the run, or all runs are read: SELECT state, steps, confirmed, disturbed, recovered_without_person FROM command_ledger.runs WHERE tenant = ''default'' AND run_id = ''nightly-7'';';
COMMENT ON COLUMN command_ledger.runs.steps IS 'Commands of the run that the reader may read.';
COMMENT ON COLUMN command_ledger.runs.still_open IS 'Steps that are neither confirmed, failed nor cancelled.';
COMMENT ON COLUMN command_ledger.runs.need_person IS 'Steps with an open question that the ledger does not look up by itself.';
COMMENT ON COLUMN command_ledger.runs.state IS
    'needs_person before running before failed; cancelled: all steps were; done: nothing failed and something was confirmed.';
COMMENT ON COLUMN command_ledger.runs.disturbed IS
    'Some attempt of some step did not end with a plain answer (not sent, no answer, repeated, looked up, answered late).';
COMMENT ON COLUMN command_ledger.runs.recovered_without_person IS
    'For a disturbed run that has ended: whether nothing failed and nobody had to reconcile or retry. NULL otherwise.';

CREATE VIEW command_ledger.duplicate_records WITH (security_barrier) AS
    SELECT 'two_records_of_one_command'::pg_catalog.text AS kind, c.destination, c.command_type,
           ARRAY[c.tenant] AS tenants, ARRAY[c.idempotency_key] AS idempotency_keys, i.record_ids,
           k.opened_at AS noticed_at, k.is_open
      FROM (SELECT r.tenant, r.idempotency_key, pg_catalog.min(r.opened_at) AS opened_at,
                   pg_catalog.bool_or(r.closed_at IS NULL) AS is_open
              FROM command_ledger.reconciliation_case r
             WHERE r.reason OPERATOR(pg_catalog.=) ANY (ARRAY['duplicate_success', 'duplicate_possible', 'lookup_ambiguous'])
             GROUP BY r.tenant, r.idempotency_key) k
      JOIN command_ledger.live_command c ON c.tenant OPERATOR(pg_catalog.=) k.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) k.idempotency_key
      CROSS JOIN LATERAL (
            SELECT coalesce(pg_catalog.array_agg(DISTINCT d.id), ARRAY[]::pg_catalog.text[]) AS record_ids
              FROM (SELECT c.destination_record_id AS id
                    UNION ALL
                    SELECT e.detail OPERATOR(pg_catalog.->>) 'record_id' FROM command_ledger.command_event e
                     WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key
                    UNION ALL
                    SELECT a.id FROM command_ledger.command_event e
                     CROSS JOIN LATERAL pg_catalog.jsonb_array_elements_text(
                           CASE WHEN pg_catalog.jsonb_typeof(e.detail OPERATOR(pg_catalog.->) 'record_ids') OPERATOR(pg_catalog.=) 'array'
                                THEN e.detail OPERATOR(pg_catalog.->) 'record_ids' ELSE '[]'::pg_catalog.jsonb END) AS a (id)
                     WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key) d
             WHERE d.id IS NOT NULL) i
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type)
    UNION ALL
    SELECT 'one_record_of_two_commands', t.destination, c.command_type,
           pg_catalog.array_agg(c.tenant ORDER BY c.registered_at, c.tenant, c.idempotency_key),
           pg_catalog.array_agg(c.idempotency_key ORDER BY c.registered_at, c.tenant, c.idempotency_key),
           ARRAY[c.destination_record_id], pg_catalog.max(c.updated_at), pg_catalog.bool_or(c.open_case IS NOT NULL)
      FROM command_ledger.command c
      JOIN command_ledger.command_type t ON t.name OPERATOR(pg_catalog.=) c.command_type AND t.version OPERATOR(pg_catalog.=) c.type_version
     WHERE c.destination_record_id IS NOT NULL
       AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type))
     GROUP BY t.destination, c.command_type, c.destination_record_id
    HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1;
COMMENT ON VIEW command_ledger.duplicate_records IS
    'Where the destination may hold one record too many, or two commands were answered with the same one. Reads all commands: for an audit, not for a dashboard. Example: SELECT kind, destination, idempotency_keys, record_ids FROM command_ledger.duplicate_records ORDER BY noticed_at DESC;';
COMMENT ON COLUMN command_ledger.duplicate_records.kind IS
    'two_records_of_one_command: two successes of one command may have made two records, or a lookup found several with its key. one_record_of_two_commands: two commands of one type name the same record (as it should be where a type changes an existing record).';
COMMENT ON COLUMN command_ledger.duplicate_records.tenants IS 'The tenants of idempotency_keys, in the same order.';
COMMENT ON COLUMN command_ledger.duplicate_records.record_ids IS
    'What is known of the records; fewer than two ids where a success named none.';
COMMENT ON COLUMN command_ledger.duplicate_records.is_open IS 'Whether a case about it is open; see reconciliation_queue.';

CREATE VIEW command_ledger.lookalikes WITH (security_barrier) AS
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
COMMENT ON COLUMN command_ledger.lookalikes.idempotency_key IS 'The later one.';
COMMENT ON COLUMN command_ledger.lookalikes.apart IS 'Between the two registrations.';

