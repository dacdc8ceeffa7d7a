-- The extension, and what the bench registers. Run once per database, as a superuser.
CREATE EXTENSION command_ledger;

CREATE SCHEMA bench;
-- As many in flight as can be: the limit is not what is measured.
SELECT command_ledger.define_destination('desk', '{"transport": "pull", "limits": {"in_flight": 10000, "retries_in_flight": 10000}}');

CREATE FUNCTION bench.handle(d command_ledger.dispatch) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{"id": "1"}'::jsonb $$;
SELECT command_ledger.define_destination('inside', '{"transport": "function", "function": "bench.handle"}');
SELECT command_ledger.pause('inside');

-- A policy as they are: a schema of ten fields, a rule that denies.
CREATE FUNCTION bench.policy(destination text, more jsonb DEFAULT '{}') RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('destination', destination, 'deny_when', '$.amount > 1000000', 'schema', jsonb_build_object(
        'type', 'object', 'additionalProperties', false,
        'required', '["tool", "account", "amount", "currency"]'::jsonb,
        'properties', '{
            "tool": {"type": "string", "maxLength": 60}, "account": {"type": "string", "maxLength": 40},
            "amount": {"type": "number", "minimum": 0}, "currency": {"type": "string", "enum": ["EUR", "USD", "GBP"]},
            "note": {"type": "string", "maxLength": 200}, "agent": {"type": "string"}, "trace": {"type": "string"},
            "plant": {"type": "string"}, "urgent": {"type": "boolean"}, "lines": {"type": "array", "maxItems": 10}}'::jsonb))
        || more
$$;
SELECT command_ledger.define_command_type('pay', bench.policy('desk'));
SELECT command_ledger.define_command_type('pay_approved', bench.policy('desk', '{"approval": {}}'));
SELECT command_ledger.define_command_type('pay_inside', bench.policy('inside'));
SELECT count(command_ledger.define_command_type('pay_' || i, bench.policy('desk'))) FROM generate_series(1, 50) i;

-- Roles with grants: one for the default tenant, one for a thousand tenants by name.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['bench_agent', 'bench_many'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I', name);
        END IF;
    END LOOP;
END $$;
SELECT command_ledger.grant_access('bench_agent', 'propose', 'default', '{pay}');
SELECT count(*) FROM generate_series(1, 1000) i, command_ledger.grant_access('bench_many', 'propose', 'tenant-' || i);

-- What every cell starts with is made once by the ledger's own functions, kept aside, and copied back before each
-- cell: a finished command and waiting ones. The guard lets nobody write the tables but the ledger; only a superuser
-- who turns triggers off, as here, can.
CREATE FUNCTION bench.empty() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL session_replication_role = replica;
    TRUNCATE command_ledger.command, command_ledger.command_event, command_ledger.approval_request,
        command_ledger.approval, command_ledger.outbox, command_ledger.lane, command_ledger.reconciliation_case;
END $$;

-- One finished command, ready to be multiplied. Its copies have the hashes of the original: a replay compares the
-- hash of the parameters, which does not depend on the key; their journals do not verify, and nothing here asks.
-- (bench/sql/keep.sql makes it.)

-- INSERT ... SELECT of whole rows, with another key.
CREATE FUNCTION bench.copy(source text, target text, key text, series text, ordered text DEFAULT '') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    names text;
    vals text;
    copied bigint;
BEGIN
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum),
           string_agg(CASE attname WHEN 'idempotency_key' THEN key ELSE 't.' || quote_ident(attname) END, ', ' ORDER BY attnum)
      INTO names, vals
      FROM pg_attribute WHERE attrelid = target::regclass AND attnum > 0 AND NOT attisdropped;
    SET LOCAL session_replication_role = replica;
    EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s t%s %s', target, names, vals, source, series, ordered);
    GET DIAGNOSTICS copied = ROW_COUNT;
    RETURN copied;
END $$;

-- n finished commands with the keys 1*step, 2*step, ... in an order that has nothing to do with the keys' own. In full
-- pages: a command's last version takes the room that fillfactor kept for it, and what is left has no room for another.
CREATE FUNCTION bench.load_finished(n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    key text := format('(((i * 7368787) %% %s + 1) * %s)::text', n, 9223372036854775806 / n);
    series text := format(', generate_series(1::bigint, %s) i', n);
    usual text := (SELECT substring(o FROM '\d+') FROM pg_class, unnest(reloptions) o
                    WHERE oid = 'command_ledger.command'::regclass AND o LIKE 'fillfactor=%');
BEGIN
    ALTER TABLE command_ledger.command SET (fillfactor = 100);
    PERFORM bench.copy('bench.done_command', 'command_ledger.command', key, series);
    PERFORM bench.copy('bench.done_event', 'command_ledger.command_event', key, series);
    EXECUTE format('ALTER TABLE command_ledger.command SET (fillfactor = %s)', coalesce(usual, '100'));
END $$;

CREATE FUNCTION bench.restore_waiting(n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bench.copy('bench.waiting_command', 'command_ledger.command', 't.idempotency_key', '', format('ORDER BY idempotency_key LIMIT %s', n));
    PERFORM bench.copy('bench.waiting_outbox', 'command_ledger.outbox', 't.idempotency_key', '', format('ORDER BY idempotency_key LIMIT %s', n));
END $$;
