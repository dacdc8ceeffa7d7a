-- Functions, by capability. All run as the caller and take on the owner's rights around their own statements; who may
-- do what is decided by grants on EXECUTE and by the table access.

-- Names, keys and hashes ---------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.current_tenant() RETURNS text
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_current_tenant';
COMMENT ON FUNCTION command_ledger.current_tenant() IS
    'The tenant a call without one is for: the setting command_ledger.tenant if the caller may use it, else the caller''s only tenant, else default.';

CREATE FUNCTION command_ledger.command_id(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant()) RETURNS uuid
    LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_command_id';
COMMENT ON FUNCTION command_ledger.command_id(text, text) IS
    'The command''s id: UUIDv8 of SHA-256 over the canonical JSON array ["command_ledger.id.v1", tenant, key]. Any client can compute it.';

CREATE FUNCTION command_ledger.derive_key(VARIADIC parts text[]) RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_derive_key';
COMMENT ON FUNCTION command_ledger.derive_key(text[]) IS
    'One idempotency key from the parts that name an intent (run, step, subject): the same parts give the same key, other parts another. Errors: 22004, CL002.';

CREATE FUNCTION command_ledger.canonical(document jsonb) RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_canonical';
COMMENT ON FUNCTION command_ledger.canonical(jsonb) IS
    'Canonical form v1 of a document: RFC 8785, with exact decimals where a number is not a shortest IEEE double. Error CL014 beyond its bounds.';

CREATE FUNCTION command_ledger.strict_json(source text) RETURNS jsonb
    LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_strict_json';
COMMENT ON FUNCTION command_ledger.strict_json(text) IS
    'Text to jsonb, refusing what a cast would silently drop or change: duplicate members, lone surrogates. Errors CL004, CL014.';

CREATE FUNCTION command_ledger.params_hash(command_type text, params jsonb, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS bytea
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_params_hash';
COMMENT ON FUNCTION command_ledger.params_hash(text, jsonb, text) IS
    'The hash by which a repeat is compared, under the type''s newest version: SHA-256 over tenant, type and material params.';

-- Propose ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.register(
    command_type text, idempotency_key text, params jsonb,
    run_id text DEFAULT NULL, step_id text DEFAULT NULL, workflow_version text DEFAULT NULL,
    refs jsonb DEFAULT NULL, proposal jsonb DEFAULT NULL, ordering_key text DEFAULT NULL,
    not_before timestamptz DEFAULT NULL, deadline timestamptz DEFAULT NULL, distinct_from text DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant()) RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_register';
COMMENT ON FUNCTION command_ledger.register(text, text, jsonb, text, text, text, jsonb, jsonb, text, timestamptz, timestamptz, text, text) IS
    'Registers an intent in the caller''s transaction. Same key and material params: the original receipt (replayed), no write; same key and other params: CL001. Further errors: CL002 key, CL003 type, CL004 params, CL005 policy, CL010 look-alike, CL014 bounds, 42501.';

CREATE FUNCTION command_ledger.validate(
    command_type text, params jsonb, tenant text DEFAULT command_ledger.current_tenant(), distinct_from text DEFAULT NULL)
    RETURNS jsonb
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_validate';
COMMENT ON FUNCTION command_ledger.validate(text, jsonb, text, text) IS
    'A dry run that writes nothing: schema, policy, approvals needed, look-alikes, the rendered request. Errors: CL003, CL004, CL014, 42501.';

CREATE FUNCTION command_ledger.revise(
    idempotency_key text, params jsonb, expected_hash bytea, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_revise';
COMMENT ON FUNCTION command_ledger.revise(text, jsonb, bytea, text) IS
    'Replaces the params of a command that was never attempted; expected_hash is the intent hash that the caller saw (CL007 if it moved on). Approvals given before are void. Errors: CL004, CL005, CL006, CL007, CL011.';

CREATE FUNCTION command_ledger.cancel(
    idempotency_key text, reason text DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_cancel';
COMMENT ON FUNCTION command_ledger.cancel(text, text, text) IS
    'Withdraws a command that is not being sent. While it may have been sent it goes to reconciliation instead. Errors: CL006, CL011, 42501.';

CREATE FUNCTION command_ledger.status(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS SETOF command_ledger.command_ledger
    LANGUAGE c STABLE ROWS 1 AS 'MODULE_PATHNAME', 'ledger_status';
COMMENT ON FUNCTION command_ledger.status(text, text) IS
    'The receipt of a command as it stands; no row when the key is unknown. Reads only. Errors: CL002, 42501.';

CREATE FUNCTION command_ledger.wait_for(
    idempotency_key text, timeout interval DEFAULT '10 s', tenant text DEFAULT command_ledger.current_tenant())
    RETURNS SETOF command_ledger.command_ledger
    LANGUAGE c VOLATILE ROWS 1 AS 'MODULE_PATHNAME', 'ledger_wait_for';
COMMENT ON FUNCTION command_ledger.wait_for(text, interval, text) IS
    'Waits until the command is settled or a person is needed, else answers what is known after the timeout (at most 60 s). Error CL006 for a command registered in this very transaction: commit first.';

-- Approve ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.approve(
    idempotency_key text, intent_hash bytea, expires_in interval DEFAULT NULL, note text DEFAULT NULL,
    approver text DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_approve';
COMMENT ON FUNCTION command_ledger.approve(text, bytea, interval, text, text, text) IS
    'Approves exactly the intent whose hash is given, for expires_in (at most the type''s ttl). approver names the person where an application shares one role. Errors: CL006, CL007, CL008, CL011, 42501.';

CREATE FUNCTION command_ledger.reject(
    idempotency_key text, intent_hash bytea, reason text DEFAULT NULL, approver text DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_reject';
COMMENT ON FUNCTION command_ledger.reject(text, bytea, text, text, text) IS
    'Refuses a planned command: it becomes failed (rejected). Errors: CL006, CL007, CL011, 42501.';

CREATE FUNCTION command_ledger.revoke_approval(
    idempotency_key text, reason text DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_revoke_approval';
COMMENT ON FUNCTION command_ledger.revoke_approval(text, text, text) IS
    'Takes all approvals of a command back. An approved one becomes planned, or goes to reconciliation if it may have been sent. Errors: CL006, CL011, 42501.';

-- Execute ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.claim(
    destination text, max_commands int DEFAULT 1, lease interval DEFAULT '60 s', worker text DEFAULT NULL,
    tenant text DEFAULT NULL)
    RETURNS SETOF command_ledger.dispatch
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_claim';
COMMENT ON FUNCTION command_ledger.claim(text, int, interval, text, text) IS
    'Hands out due commands of a pull destination, each as one fenced attempt. Its commit is the checkpoint, so it is refused in a transaction block (CL013). tenant NULL: all the caller may see. Errors: CL003, CL013, CL015, 42501.';

CREATE FUNCTION command_ledger.register_and_claim(
    command_type text, idempotency_key text, params jsonb, lease interval DEFAULT '60 s', worker text DEFAULT NULL,
    run_id text DEFAULT NULL, step_id text DEFAULT NULL, workflow_version text DEFAULT NULL,
    refs jsonb DEFAULT NULL, proposal jsonb DEFAULT NULL, ordering_key text DEFAULT NULL,
    not_before timestamptz DEFAULT NULL, deadline timestamptz DEFAULT NULL, distinct_from text DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant(),
    OUT receipt command_ledger.command_ledger, OUT lease_token uuid, OUT lease_expires_at timestamptz)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_register_and_claim';
COMMENT ON FUNCTION command_ledger.register_and_claim(text, text, jsonb, interval, text, text, text, text, jsonb, jsonb, text, timestamptz, timestamptz, text, text) IS
    'Registers and claims in one commit, for a caller that makes the call itself. No lease_token means: do not make the call (made before, open, awaiting approval). Errors: as register and claim.';

CREATE FUNCTION command_ledger.extend_lease(
    idempotency_key text, lease_token uuid, lease interval DEFAULT '60 s', tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_extend_lease';
COMMENT ON FUNCTION command_ledger.extend_lease(text, uuid, interval, text) IS
    'Prolongs the lease of a running attempt, never past deadline, approval or window. Errors: CL006, CL009, CL011, 42501.';

CREATE FUNCTION command_ledger.confirm(
    idempotency_key text, lease_token uuid, destination_record_id text DEFAULT NULL, result jsonb DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_confirm';
COMMENT ON FUNCTION command_ledger.confirm(text, uuid, text, jsonb, text) IS
    'The destination did it. With an older token it is late evidence: kept, and used by the rules for late answers. Errors: CL009, CL011, 42501.';

CREATE FUNCTION command_ledger.confirm_many(
    idempotency_keys text[], lease_tokens uuid[], destination_record_ids text[] DEFAULT NULL, results jsonb[] DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant())
    RETURNS SETOF command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_confirm_many';
COMMENT ON FUNCTION command_ledger.confirm_many(text[], uuid[], text[], jsonb[], text) IS
    'confirm() for up to 1,000 commands at once, all or none: the n-th elements of the arrays belong together. Errors: 22023, CL009, CL011, 42501; the detail names the key.';

CREATE FUNCTION command_ledger.fail(
    idempotency_key text, lease_token uuid, error command_ledger.error_class, message text DEFAULT NULL,
    detail jsonb DEFAULT NULL, retry_after interval DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_fail';
COMMENT ON FUNCTION command_ledger.fail(text, uuid, command_ledger.error_class, text, jsonb, interval, text) IS
    'The attempt failed: not_sent and transient are repeated within the budget, permanent and permission end the command, unless an earlier attempt may have had an effect. Errors: 22023, CL009, CL011, 42501.';

CREATE FUNCTION command_ledger.uncertain(
    idempotency_key text, lease_token uuid, message text DEFAULT NULL, detail jsonb DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_uncertain';
COMMENT ON FUNCTION command_ledger.uncertain(text, uuid, text, jsonb, text) IS
    'The worker does not know whether the destination did it. Errors: CL009, CL011, 42501.';

CREATE FUNCTION command_ledger.release(
    idempotency_key text, lease_token uuid, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_release';
COMMENT ON FUNCTION command_ledger.release(text, uuid, text) IS
    'Gives a claimed command back, provably not sent: due at once, and the attempt does not count against max_attempts. Errors: CL009, CL011, 42501.';

CREATE FUNCTION command_ledger.consume(
    consumer text, message_id text, payload jsonb DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS boolean
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_consume';
COMMENT ON FUNCTION command_ledger.consume(text, text, jsonb, text) IS
    'True the first time a message is taken, in the caller''s transaction; false afterwards; CL001 for the same id with another payload.';

-- Operate ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.reconcile(
    idempotency_key text, finding text, destination_record_id text DEFAULT NULL, evidence jsonb DEFAULT NULL,
    note text DEFAULT NULL, expected_attempt int DEFAULT NULL, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_reconcile';
COMMENT ON FUNCTION command_ledger.reconcile(text, text, text, jsonb, text, int, text) IS
    'A person''s finding closes a case: found (confirmed), not_found (may be sent again), abandon (failed). expected_attempt is required for not_found beyond attempt 1. Errors: 22023, CL006, CL011, 42501.';

CREATE FUNCTION command_ledger.retry(
    idempotency_key text, reason text DEFAULT NULL, deadline timestamptz DEFAULT NULL,
    tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_retry';
COMMENT ON FUNCTION command_ledger.retry(text, text, timestamptz, text) IS
    'One more attempt for a failed command that was certainly not sent; to planned if no approval is valid. Errors: CL006, CL011, 42501.';

CREATE FUNCTION command_ledger.assign_case(
    idempotency_key text, owner text, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_assign_case';
COMMENT ON FUNCTION command_ledger.assign_case(text, text, text) IS
    'Says who works on the open case; NULL takes the name off. Errors: CL006 without an open case, CL011, 42501.';

CREATE FUNCTION command_ledger.pause(destination text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_pause';
COMMENT ON FUNCTION command_ledger.pause(text) IS
    'No new attempts to a destination until resume(); what is in flight ends. Errors: CL003, 42501.';

CREATE FUNCTION command_ledger.resume(destination text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_resume';
COMMENT ON FUNCTION command_ledger.resume(text) IS
    'Lets a paused destination go on. Errors: CL003, 42501.';

CREATE FUNCTION command_ledger.redact(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant())
    RETURNS command_ledger.command_ledger
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_redact';
COMMENT ON FUNCTION command_ledger.redact(text, text) IS
    'Removes params, proposal, refs, result and evidence of a settled command; key, hashes and outcome stay, so that a repeat is still a replay or a conflict. Errors: CL006, CL011, 42501.';

CREATE FUNCTION command_ledger.purge(max_commands int DEFAULT 1000) RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_purge';
COMMENT ON FUNCTION command_ledger.purge(int) IS
    'Applies retention: redacts payloads and deletes commands whose key retention, window, deadline and retry horizon are past. Answers how many commands were redacted or deleted.';

CREATE FUNCTION command_ledger.adopt_relay(resend boolean DEFAULT false) RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_adopt_relay';
COMMENT ON FUNCTION command_ledger.adopt_relay(boolean) IS
    'Declares that this database is the one that sends, after a restore, copy or promotion. Verifies the journals of open commands first. resend false: open commands count as maybe sent; true: they were certainly not sent. Errors: CL015, 42501.';

-- Administer ---------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.define_destination(name text, config jsonb) RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_define_destination';
COMMENT ON FUNCTION command_ledger.define_destination(text, jsonb) IS
    'Defines or changes a destination; answers its revision. CL012 names the JSON path of what is wrong.';

CREATE FUNCTION command_ledger.define_command_type(name text, policy jsonb) RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_define_command_type';
COMMENT ON FUNCTION command_ledger.define_command_type(text, jsonb) IS
    'Defines a command type, or a new version of it when the policy changed; answers the version. CL003 unknown destination, CL012 names the JSON path of what is wrong.';

CREATE FUNCTION command_ledger.grant_access(
    role regrole, capability text, tenant text DEFAULT NULL, command_types text[] DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_grant_access';
COMMENT ON FUNCTION command_ledger.grant_access(regrole, text, text, text[]) IS
    'Gives a role a capability (propose, approve, execute, operate, administer, audit) for one tenant (NULL: all) and some command types (NULL: all), with the EXECUTE and SELECT rights that it needs. Errors: CL012, 42501.';

CREATE FUNCTION command_ledger.revoke_access(
    role regrole, capability text, tenant text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_revoke_access';
COMMENT ON FUNCTION command_ledger.revoke_access(regrole, text, text) IS
    'Takes a capability back that grant_access gave for the same tenant. Errors: CL012, 42501.';

CREATE FUNCTION command_ledger.start_relay() RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_start_relay';
COMMENT ON FUNCTION command_ledger.start_relay() IS
    'Starts the relay of this database where the library is not preloaded, until the server restarts. Answers what it found or did.';

CREATE FUNCTION command_ledger.stop_relay() RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'ledger_stop_relay';
COMMENT ON FUNCTION command_ledger.stop_relay() IS
    'Stops a relay that start_relay() started. A preloaded one is governed by the setting command_ledger.relay.';

-- Audit --------------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.evidence(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant()) RETURNS jsonb
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_evidence';
COMMENT ON FUNCTION command_ledger.evidence(text, text) IS
    'Everything that proves what happened to a command, with its verified journal. Errors: CL011, 42501.';

CREATE FUNCTION command_ledger.explain(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant()) RETURNS text
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_explain';
COMMENT ON FUNCTION command_ledger.explain(text, text) IS
    'The same as evidence(), for a person. Errors: CL011, 42501.';

CREATE FUNCTION command_ledger.verify_journal(idempotency_key text, tenant text DEFAULT command_ledger.current_tenant()) RETURNS boolean
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_verify_journal';
COMMENT ON FUNCTION command_ledger.verify_journal(text, text) IS
    'Whether the command''s journal is whole: every entry present, in order, and chained to the one before it. Errors: CL011, 42501.';

CREATE FUNCTION command_ledger.health(OUT check_name text, OUT ok boolean, OUT detail text, OUT hint text) RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 14 AS 'MODULE_PATHNAME', 'ledger_health';
COMMENT ON FUNCTION command_ledger.health() IS
    'Says in words whether the ledger and its relay can work, and if nothing moves, why not and what to do.';

CREATE FUNCTION command_ledger.may_read(tenant text, command_type text) RETURNS boolean
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ledger_may_read';
COMMENT ON FUNCTION command_ledger.may_read(text, text) IS
    'Whether the current role may read this tenant''s commands of this type; the predicate of the views.';

CREATE FUNCTION command_ledger.counters(OUT name text, OUT value bigint) RETURNS SETOF record
    LANGUAGE c VOLATILE ROWS 8 AS 'MODULE_PATHNAME', 'ledger_counters';
COMMENT ON FUNCTION command_ledger.counters() IS
    'What was prevented since the server started (replays answered, conflicts refused, look-alikes stopped, repeats not sent), and what the relay did over HTTP (attempts, ends, microseconds from claim to end); no row where the library is not preloaded.';

-- For the views ------------------------------------------------------------------------------------------------------

CREATE FUNCTION command_ledger.may_read_all() RETURNS boolean
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ledger_may_read_all';
COMMENT ON FUNCTION command_ledger.may_read_all() IS
    'Whether the current role may read every command of every tenant and type; asked once per query, before may_read().';

CREATE FUNCTION command_ledger.reason_in_words(reason text) RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ledger_reason_in_words';
COMMENT ON FUNCTION command_ledger.reason_in_words(text) IS
    'One sentence for the word in reconciliation_case.reason; NULL for an unknown word.';

CREATE FUNCTION command_ledger.fence_state() RETURNS text
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_fence_state';
COMMENT ON FUNCTION command_ledger.fence_state() IS
    'open: sends. unadopted: may be a copy, sends nothing. halted: in another place, sends nothing. moved: in another place, looks up first.';

CREATE FUNCTION command_ledger.ledger_identity() RETURNS bigint
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'ledger_ledger_identity';
COMMENT ON FUNCTION command_ledger.ledger_identity() IS
    'The mark of this ledger that its outbox rows carry; rows with another one were written by another ledger.';

CREATE FUNCTION command_ledger.held_back(destination text, OUT failures bigint, OUT open_until timestamptz, OUT full_until timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE STRICT ROWS 1 AS 'MODULE_PATHNAME', 'ledger_held_back';
COMMENT ON FUNCTION command_ledger.held_back(text) IS
    'What the running relay knows of a destination''s breaker and rate: failures in a row, when the breaker lets a probe through (NULL: closed), when the rate permits the next send (NULL or past: now). No row where the library is not preloaded.';
