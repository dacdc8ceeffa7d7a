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

CREATE VIEW command_ledger.open_question AS
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
           END AS suggested_next_step
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
COMMENT ON VIEW command_ledger.open_question IS
    'Internal, granted to nobody: what reconciliation_queue shows, for everybody''s commands.';

CREATE VIEW command_ledger.reconciliation_queue WITH (security_barrier) AS
    SELECT q.tenant, q.idempotency_key, q.command_type, q.destination, q.destination_key, q.status, q.reason,
           q.reason_in_words, q.opened_at, q.age, q.owner, q.attempt, q.maybe_sent, q.last_sent_at, q.last_lookup,
           q.lookups_done, q.next_lookup_at, q.advice, q.suggested_next_step
      FROM command_ledger.open_question q
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(q.tenant, q.command_type);
COMMENT ON VIEW command_ledger.reconciliation_queue IS
    'Open questions: commands whose outcome is not known, and evidence that contradicts a settled one. Oldest first: SELECT idempotency_key, reason_in_words, age, owner, last_lookup, suggested_next_step FROM command_ledger.reconciliation_queue ORDER BY opened_at;';
COMMENT ON COLUMN command_ledger.reconciliation_queue.destination_key IS
    'The key under which the destination knows the command, if it knows it: search for this one.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.reason IS 'Why the question is open, as a word for programs.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.owner IS 'Who works on it, see assign_case().';
COMMENT ON COLUMN command_ledger.reconciliation_queue.attempt IS
    'Attempts started so far; reconcile() takes it as expected_attempt, so that a finding is never about a newer one.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.maybe_sent IS
    'Some attempt may have had an effect that is neither confirmed nor excluded.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.last_sent_at IS 'When the last attempt started.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.last_lookup IS 'What the last lookup said; NULL when none was made.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.next_lookup_at IS
    'When the ledger asks the destination again by itself; NULL: a person must answer.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.advice IS 'What to do, in words.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.suggested_next_step IS
    'The call that closes the case, ready to run once its finding is true. A record id of … is yours to fill in.';

CREATE VIEW command_ledger.approval_queue WITH (security_barrier) AS
    SELECT c.tenant, c.idempotency_key, c.command_type, c.destination, c.status, c.intent_hash, p.params,
           c.proposer, c.run_id, c.step_id, c.approvals_required, a.given AS approvals_given,
           CASE WHEN c.approvals_required OPERATOR(pg_catalog.>) a.given THEN c.approvals_required OPERATOR(pg_catalog.-) a.given ELSE 0 END AS approvals_missing,
           q.requested_at, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) q.requested_at AS age, c.deadline,
           NULL::pg_catalog.timestamptz AS approved_at, NULL::pg_catalog.interval AS approved_undispatched_age,
           pg_catalog.format('SELECT command_ledger.approve(%L, ''\x%s'', tenant => %L);', c.idempotency_key,
                             pg_catalog.encode(c.intent_hash, 'hex'), c.tenant) AS approve_call
      FROM command_ledger.approval_request q
      JOIN command_ledger.live_command c ON c.tenant OPERATOR(pg_catalog.=) q.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key
      JOIN command_ledger.command p ON p.tenant OPERATOR(pg_catalog.=) q.tenant AND p.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key
      CROSS JOIN LATERAL (
            -- As the quorum is counted: an approval that states no person is nobody new beside one of its role that does.
            SELECT coalesce(pg_catalog.sum(GREATEST(r.stated, 1)), 0)::pg_catalog.int4 AS given
              FROM (SELECT pg_catalog.count(DISTINCT x.approver) AS stated
                      FROM command_ledger.approval x
                     WHERE x.tenant OPERATOR(pg_catalog.=) q.tenant AND x.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key AND x.intent_hash OPERATOR(pg_catalog.=) c.intent_hash
                       AND x.revoked_at IS NULL AND x.expires_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp()
                     GROUP BY x.role) r) a
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type)
    UNION ALL
    SELECT c.tenant, c.idempotency_key, c.command_type, c.destination, c.status, c.intent_hash, p.params,
           c.proposer, c.run_id, c.step_id, c.approvals_required, a.given, 0,
           c.registered_at, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) c.registered_at, c.deadline,
           a.last_at, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) a.last_at, NULL
      FROM command_ledger.outbox o
      JOIN command_ledger.live_command c ON c.tenant OPERATOR(pg_catalog.=) o.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
      JOIN command_ledger.command p ON p.tenant OPERATOR(pg_catalog.=) o.tenant AND p.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
      CROSS JOIN LATERAL (
            SELECT coalesce(pg_catalog.sum(GREATEST(r.stated, 1)), 0)::pg_catalog.int4 AS given,
                   pg_catalog.max(r.last_at) AS last_at
              FROM (SELECT pg_catalog.count(DISTINCT x.approver) AS stated, pg_catalog.max(x.granted_at) AS last_at
                      FROM command_ledger.approval x
                     WHERE x.tenant OPERATOR(pg_catalog.=) o.tenant AND x.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key AND x.intent_hash OPERATOR(pg_catalog.=) c.intent_hash
                       AND x.revoked_at IS NULL
                     GROUP BY x.role) r) a
     WHERE o.attempt OPERATOR(pg_catalog.=) 0 AND o.lease_token IS NULL AND p.approvals_required OPERATOR(pg_catalog.>) 0
       AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(c.tenant, c.command_type));
COMMENT ON VIEW command_ledger.approval_queue IS
    'Commands that wait for an approval (status planned), and approved ones that were not sent yet (status approved). What waits longest: SELECT idempotency_key, proposer, params, approvals_missing, age, approve_call FROM command_ledger.approval_queue WHERE status = ''planned'' ORDER BY requested_at;';
COMMENT ON COLUMN command_ledger.approval_queue.intent_hash IS
    'What an approval signs: everything that will be executed, params and request definition included.';
COMMENT ON COLUMN command_ledger.approval_queue.params IS 'What will be executed, for the person who decides.';
COMMENT ON COLUMN command_ledger.approval_queue.approvals_given IS
    'Approvals of different people for exactly this intent hash that are neither revoked nor lapsed.';
COMMENT ON COLUMN command_ledger.approval_queue.age IS 'Since the approval was asked for (status approved: since registration).';
COMMENT ON COLUMN command_ledger.approval_queue.approved_undispatched_age IS
    'How long the approval stands without a send; dispatch_queue says why it is not sent.';
COMMENT ON COLUMN command_ledger.approval_queue.approve_call IS 'The call that approves exactly what this row shows.';

CREATE VIEW command_ledger.queued_work AS
    SELECT c.tenant, c.idempotency_key, c.command_type, o.destination, o.attempt, w.state, w.blocked_by,
           CASE
                WHEN w.reason OPERATOR(pg_catalog.=) 'in_flight' THEN pg_catalog.format('Attempt %s is in flight%s; its lease ends at %s.', o.attempt,
                    ' with ' OPERATOR(pg_catalog.||) o.worker, pg_catalog.date_trunc('second', o.lease_expires_at))
                WHEN w.reason OPERATOR(pg_catalog.=) 'lease_over' THEN pg_catalog.format('The lease of attempt %s is over without an answer%s; the relay judges it on its next round.',
                    o.attempt, ' from ' OPERATOR(pg_catalog.||) o.worker)
                WHEN w.reason OPERATOR(pg_catalog.=) 'case' THEN 'An open case stops it; see the view reconciliation_queue.'
                WHEN w.reason OPERATOR(pg_catalog.=) 'unadopted' THEN 'Nothing is sent: this ledger is not adopted, it may be a copy whose original still sends. See adopt_relay().'
                WHEN w.reason OPERATOR(pg_catalog.=) 'halted' THEN 'Nothing is sent: the ledger runs in another place than the one it was adopted in. See adopt_relay().'
                WHEN w.reason OPERATOR(pg_catalog.=) 'identity' THEN 'Another ledger wrote this row (a copy or restore); adopt_relay() decides about it.'
                WHEN w.reason OPERATOR(pg_catalog.=) 'pause' THEN pg_catalog.format('The destination is paused since %s by %s; see resume().',
                    pg_catalog.date_trunc('second', d.paused_at), d.paused_by)
                WHEN w.reason OPERATOR(pg_catalog.=) 'relay_off' THEN 'The setting command_ledger.relay is off.'
                WHEN w.reason OPERATOR(pg_catalog.=) 'not_before' THEN pg_catalog.format('It was registered for later: not before %s.',
                    pg_catalog.date_trunc('second', o.due_at))
                WHEN w.reason OPERATOR(pg_catalog.=) 'retry' THEN pg_catalog.format('Attempt %s ended with %s; the next one is due at %s.', o.attempt,
                    coalesce(o.error::pg_catalog.text, 'no effect'), pg_catalog.date_trunc('second', o.due_at))
                WHEN w.reason OPERATOR(pg_catalog.=) 'lane' THEN pg_catalog.format('It waits in lane %s behind %s.', o.ordering_key, h.idempotency_key)
                WHEN w.reason OPERATOR(pg_catalog.=) 'limit' THEN pg_catalog.format('%s attempts are in flight at the destination, the limit is %s.', f.leased, l.in_flight)
                WHEN w.reason OPERATOR(pg_catalog.=) 'retry_limit' THEN pg_catalog.format('%s repeats are in flight at the destination, the limit for repeats is %s.',
                    f.repeats, l.retries_in_flight)
                WHEN w.reason OPERATOR(pg_catalog.=) 'breaker' THEN pg_catalog.format('The breaker is open after %s failures of the destination in a row; %s.', b.failures,
                    CASE WHEN b.open_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN pg_catalog.format('one probe goes at %s', pg_catalog.date_trunc('second', b.open_until))
                         ELSE 'one probe goes now, the rest waits for its answer' END)
                WHEN w.reason OPERATOR(pg_catalog.=) 'rate' THEN pg_catalog.format('The destination takes %s sends per second, and they are used up.',
                    d.config OPERATOR(pg_catalog.->) 'limits' OPERATOR(pg_catalog.->>) 'per_second')
                WHEN w.reason OPERATOR(pg_catalog.=) 'unreadable' THEN pg_catalog.format('It cannot be claimed (%s); it is tried again at %s.',
                    o.error_message, pg_catalog.date_trunc('second', o.due_at))
                WHEN w.reason OPERATOR(pg_catalog.=) 'pull' THEN 'It is due: the next claim() of a worker takes it.'
                ELSE 'It is due: the relay takes it on its next round.'
           END AS why,
           o.due_at, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) o.due_at AS overdue,
           pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) c.registered_at AS age, o.maybe_sent, o.deadline, o.approved_until,
           o.lease_expires_at, o.worker, o.ordering_key, h.idempotency_key AS lane_head, o.error, o.error_message
      FROM command_ledger.outbox o
      JOIN command_ledger.command c ON c.tenant OPERATOR(pg_catalog.=) o.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
      LEFT JOIN command_ledger.destination d ON d.name OPERATOR(pg_catalog.=) o.destination
      LEFT JOIN LATERAL (
            SELECT coalesce((d.config OPERATOR(pg_catalog.->) 'limits' OPERATOR(pg_catalog.->>) 'in_flight')::pg_catalog.int8, 16) AS in_flight
           OFFSET 0) i ON true
      LEFT JOIN LATERAL (
            SELECT i.in_flight, coalesce((d.config OPERATOR(pg_catalog.->) 'limits' OPERATOR(pg_catalog.->>) 'retries_in_flight')::pg_catalog.int8,
                                         GREATEST(i.in_flight OPERATOR(pg_catalog./) 2, 1)) AS retries_in_flight
           OFFSET 0) l ON true
      LEFT JOIN (SELECT x.destination, pg_catalog.count(*) AS leased,
                        pg_catalog.count(*) FILTER (WHERE x.counted_attempts OPERATOR(pg_catalog.>) 1) AS repeats
                   FROM command_ledger.outbox x WHERE x.lease_token IS NOT NULL GROUP BY x.destination) f
             ON f.destination OPERATOR(pg_catalog.=) o.destination
      LEFT JOIN LATERAL (
            SELECT n.idempotency_key FROM command_ledger.lane n
             WHERE o.ordering_key IS NOT NULL AND n.tenant OPERATOR(pg_catalog.=) o.tenant AND n.destination OPERATOR(pg_catalog.=) o.destination
               AND n.ordering_key OPERATOR(pg_catalog.=) o.ordering_key
             ORDER BY n.place LIMIT 1) h ON true
      LEFT JOIN (SELECT e.name, y.failures, y.open_until, y.full_until
                   FROM command_ledger.destination e CROSS JOIN LATERAL command_ledger.held_back(e.name) y OFFSET 0) b
             ON b.name OPERATOR(pg_catalog.=) o.destination
      CROSS JOIN LATERAL (
            SELECT CASE WHEN o.lease_expires_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp() THEN 'lease_over'
                        WHEN o.lease_token IS NOT NULL THEN 'in_flight'
                        WHEN o.open_case IS NOT NULL THEN 'case'
                        WHEN (SELECT command_ledger.fence_state()) OPERATOR(pg_catalog.=) 'unadopted' THEN 'unadopted'
                        WHEN (SELECT command_ledger.fence_state()) OPERATOR(pg_catalog.=) 'halted' THEN 'halted'
                        WHEN o.ledger_identity OPERATOR(pg_catalog.<>) (SELECT command_ledger.ledger_identity()) THEN 'identity'
                        WHEN d.paused_at IS NOT NULL THEN 'pause'
                        WHEN (d.config OPERATOR(pg_catalog.->>) 'transport') OPERATOR(pg_catalog.<>) 'pull'
                             AND pg_catalog.current_setting('command_ledger.relay', true) OPERATOR(pg_catalog.=) 'off' THEN 'relay_off'
                        WHEN o.due_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp() AND o.attempt OPERATOR(pg_catalog.>) 0 THEN 'retry'
                        WHEN o.due_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp() AND o.error_message IS NOT NULL THEN 'unreadable'
                        WHEN o.due_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp() THEN 'not_before'
                        WHEN h.idempotency_key OPERATOR(pg_catalog.<>) o.idempotency_key THEN 'lane'
                        WHEN f.leased OPERATOR(pg_catalog.>=) l.in_flight THEN 'limit'
                        WHEN o.counted_attempts OPERATOR(pg_catalog.>) 0 AND f.repeats OPERATOR(pg_catalog.>=) l.retries_in_flight THEN 'retry_limit'
                        WHEN b.open_until IS NOT NULL THEN 'breaker'
                        WHEN b.full_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'rate'
                        WHEN (d.config OPERATOR(pg_catalog.->>) 'transport') OPERATOR(pg_catalog.=) 'pull' THEN 'pull'
                        ELSE 'due' END AS reason
           OFFSET 0) v
      CROSS JOIN LATERAL (
            SELECT v.reason,
                   CASE WHEN v.reason OPERATOR(pg_catalog.=) ANY (ARRAY['in_flight', 'lease_over']) THEN 'leased'
                        WHEN v.reason OPERATOR(pg_catalog.=) ANY (ARRAY['pull', 'due']) THEN 'due'
                        WHEN v.reason OPERATOR(pg_catalog.=) ANY (ARRAY['retry', 'not_before', 'rate']) THEN 'waiting'
                        ELSE 'blocked' END AS state,
                   CASE WHEN v.reason OPERATOR(pg_catalog.=) ANY (ARRAY['in_flight', 'lease_over', 'pull', 'due']) THEN NULL
                        WHEN v.reason OPERATOR(pg_catalog.=) ANY (ARRAY['unadopted', 'halted']) THEN 'fence'
                        WHEN v.reason OPERATOR(pg_catalog.=) 'retry_limit' THEN 'limit'
                        ELSE v.reason END AS blocked_by) w;
COMMENT ON VIEW command_ledger.queued_work IS
    'Internal, granted to nobody: what dispatch_queue shows, for everybody''s commands.';

CREATE VIEW command_ledger.dispatch_queue WITH (security_barrier) AS
    SELECT q.tenant, q.idempotency_key, q.command_type, q.destination, q.attempt, q.state, q.blocked_by, q.why, q.due_at,
           q.overdue, q.age, q.maybe_sent, q.deadline, q.approved_until, q.lease_expires_at, q.worker, q.ordering_key,
           q.lane_head, q.error, q.error_message
      FROM command_ledger.queued_work q
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(q.tenant, q.command_type);
COMMENT ON VIEW command_ledger.dispatch_queue IS
    'Approved and running work, and why it moves or does not. Example: SELECT idempotency_key, destination, state, why, age FROM command_ledger.dispatch_queue ORDER BY due_at;';
COMMENT ON COLUMN command_ledger.dispatch_queue.state IS
    'due: the next claim takes it. leased: an attempt is in flight. waiting: for its time. blocked: something must change first.';
COMMENT ON COLUMN command_ledger.dispatch_queue.blocked_by IS
    'lane, limit, pause, fence, identity, case, relay_off, not_before, retry, breaker, rate or unreadable; NULL when due or leased. What waits for an approval is not here but in approval_queue.';
COMMENT ON COLUMN command_ledger.dispatch_queue.why IS 'The same in words.';
COMMENT ON COLUMN command_ledger.dispatch_queue.overdue IS 'Since it was due; negative while it waits for its time.';
COMMENT ON COLUMN command_ledger.dispatch_queue.age IS 'Since it was registered.';
COMMENT ON COLUMN command_ledger.dispatch_queue.lane_head IS 'The key that its lane waits for; its own when it is the head.';

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
                    WHERE e.tenant OPERATOR(pg_catalog.=) c.tenant AND e.idempotency_key OPERATOR(pg_catalog.=) c.idempotency_key) j
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
             WHERE r.reason OPERATOR(pg_catalog.=) ANY (ARRAY['duplicate_success', 'duplicate_possible'])
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
    'two_records_of_one_command: two successes of one command may have made two records. one_record_of_two_commands: two commands of one type name the same record (as it should be where a type changes an existing record).';
COMMENT ON COLUMN command_ledger.duplicate_records.tenants IS 'The tenants of idempotency_keys, in the same order.';
COMMENT ON COLUMN command_ledger.duplicate_records.record_ids IS
    'What is known of the records; fewer than two ids where a success named none.';
COMMENT ON COLUMN command_ledger.duplicate_records.is_open IS 'Whether a case about it is open; see reconciliation_queue.';

CREATE VIEW command_ledger.lookalikes WITH (security_barrier) AS
    SELECT n.tenant, n.command_type, n.idempotency_key, n.status, n.registered_at, n.proposer, n.run_id,
           f.idempotency_key AS earlier_key, f.status AS earlier_status, f.registered_at AS earlier_registered_at,
           f.proposer AS earlier_proposer, f.run_id AS earlier_run_id, n.registered_at OPERATOR(pg_catalog.-) f.registered_at AS apart
      FROM command_ledger.command p
      JOIN command_ledger.command o ON o.params_hash OPERATOR(pg_catalog.=) p.params_hash AND o.tenant OPERATOR(pg_catalog.=) p.tenant
                                   AND o.command_type OPERATOR(pg_catalog.=) p.command_type AND o.idempotency_key OPERATOR(pg_catalog.<>) p.idempotency_key
                                   AND o.lookalike_until IS NOT NULL
                                   AND o.registered_at OPERATOR(pg_catalog.>=) p.registered_at AND o.registered_at OPERATOR(pg_catalog.<) p.lookalike_until
      JOIN command_ledger.live_command f ON f.tenant OPERATOR(pg_catalog.=) p.tenant AND f.idempotency_key OPERATOR(pg_catalog.=) p.idempotency_key
      JOIN command_ledger.live_command n ON n.tenant OPERATOR(pg_catalog.=) o.tenant AND n.idempotency_key OPERATOR(pg_catalog.=) o.idempotency_key
     WHERE p.lookalike_until IS NOT NULL
       AND (o.registered_at OPERATOR(pg_catalog.>) p.registered_at OR o.idempotency_key OPERATOR(pg_catalog.>) p.idempotency_key)
       AND ((SELECT command_ledger.may_read_all()) OR command_ledger.may_read(p.tenant, p.command_type));
COMMENT ON VIEW command_ledger.lookalikes IS
    'Pairs of commands with the same content under two keys within the look-alike window of their type: one intent under two names, or one that was meant twice (distinct_from). Example: SELECT idempotency_key, earlier_key, apart, proposer FROM command_ledger.lookalikes ORDER BY registered_at DESC;';
COMMENT ON COLUMN command_ledger.lookalikes.idempotency_key IS 'The later one.';
COMMENT ON COLUMN command_ledger.lookalikes.apart IS 'Between the two registrations.';

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
              JOIN command_ledger.command c ON c.tenant OPERATOR(pg_catalog.=) q.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) q.idempotency_key
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

CREATE VIEW command_ledger.metrics WITH (security_barrier) AS
    WITH s AS (SELECT d.destination, d.queued, d.due, d.in_flight, d.maybe_sent, d.oldest_overdue, d.paused_at
                 FROM command_ledger.destination_status d)
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
    SELECT 'command_ledger_open_cases', pg_catalog.jsonb_build_object('destination', q.destination, 'reason', q.reason),
           pg_catalog.count(*)::pg_catalog.float8
      FROM command_ledger.reconciliation_queue q GROUP BY q.destination, q.reason
    UNION ALL
    SELECT 'command_ledger_oldest_case_seconds', '{}'::pg_catalog.jsonb,
           coalesce(pg_catalog.date_part('epoch', pg_catalog.max(q.age)), 0)
      FROM command_ledger.reconciliation_queue q
    UNION ALL
    SELECT 'command_ledger_approvals_waiting', '{}'::pg_catalog.jsonb, pg_catalog.count(*)::pg_catalog.float8
      FROM command_ledger.approval_request r
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(r.tenant, (SELECT c.command_type
               FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key))
    UNION ALL
    SELECT 'command_ledger_oldest_approval_seconds', '{}'::pg_catalog.jsonb,
           coalesce(pg_catalog.date_part('epoch', pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(r.requested_at)), 0)
      FROM command_ledger.approval_request r
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(r.tenant, (SELECT c.command_type
               FROM command_ledger.command c WHERE c.tenant OPERATOR(pg_catalog.=) r.tenant AND c.idempotency_key OPERATOR(pg_catalog.=) r.idempotency_key))
    UNION ALL
    SELECT 'command_ledger_sends', '{}'::pg_catalog.jsonb,
           CASE WHEN command_ledger.fence_state() OPERATOR(pg_catalog.=) 'open' THEN 1 ELSE 0 END::pg_catalog.float8
    UNION ALL
    SELECT 'command_ledger_prevented_total', pg_catalog.jsonb_build_object('what', n.name), n.value::pg_catalog.float8
      FROM command_ledger.counters() n;
COMMENT ON VIEW command_ledger.metrics IS
    'Figures for monitoring, from the small tables only: one row per figure and set of labels, limited to what the reader may read. Example: SELECT name, labels, value FROM command_ledger.metrics;';
COMMENT ON COLUMN command_ledger.metrics.name IS
    'Names ending in _total only grow (since the server started); all others are momentary. _seconds: age of the oldest, 0 when there is none.';
COMMENT ON COLUMN command_ledger.metrics.labels IS 'What the figure is about: destination, state, reason, what.';
COMMENT ON COLUMN command_ledger.metrics.value IS
    'command_ledger_sends: 1 while the fence is open, 0 while nothing is sent because this may be a copy.';
