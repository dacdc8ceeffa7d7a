-- The queues: what waits for a finding, for an approval, for its turn. See record.sql for the rules of all views.

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
COMMENT ON VIEW command_ledger.open_question IS
    'Internal, granted to nobody: what reconciliation_queue shows, for everybody''s commands.';

CREATE VIEW command_ledger.reconciliation_queue WITH (security_barrier) AS
    SELECT q.tenant, q.idempotency_key, q.command_type, q.destination, q.destination_key, q.status, q.reason,
           q.reason_in_words, q.opened_at, q.age, q.owner, q.attempt, q.maybe_sent, q.last_sent_at, q.last_lookup,
           q.lookups_done, q.next_lookup_at, q.advice, q.suggested_next_step, q.assigned_at
      FROM command_ledger.open_question q
     WHERE (SELECT command_ledger.may_read_all()) OR command_ledger.may_read(q.tenant, q.command_type);
COMMENT ON VIEW command_ledger.reconciliation_queue IS
    'Open questions: commands whose outcome is not known, and evidence that contradicts a settled one. Oldest first: SELECT idempotency_key, reason_in_words, age, owner, last_lookup, suggested_next_step FROM command_ledger.reconciliation_queue ORDER BY opened_at;';
COMMENT ON COLUMN command_ledger.reconciliation_queue.destination_key IS
    'The key under which the destination knows the command, if it knows it: search for this one.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.reason IS 'Why the question is open, as a word for programs.';
COMMENT ON COLUMN command_ledger.reconciliation_queue.owner IS 'Who works on it, see assign_case().';
COMMENT ON COLUMN command_ledger.reconciliation_queue.assigned_at IS
    'Since when its owner works on it: a question that somebody took long ago is as open as one that nobody took.';
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

