-- The floors: what a careful team would write by hand for the same work. No tenants, no schema, no approval, no chain.
DROP SCHEMA IF EXISTS floors CASCADE;
CREATE SCHEMA floors;

-- F1: the row and its key, nothing else.
CREATE TABLE floors.lone (
    key text NOT NULL,
    hash bytea NOT NULL,
    params jsonb NOT NULL,
    status smallint NOT NULL DEFAULT 0,
    attempt int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now());
CREATE UNIQUE INDEX lone_key ON floors.lone (key);

-- F2 to F6: command, journal, work list. status: 0 registered, 1 sent, 2 settled.
CREATE TABLE floors.command (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0,
    status smallint NOT NULL DEFAULT 0,
    key text NOT NULL UNIQUE,
    hash bytea NOT NULL,
    params jsonb NOT NULL,
    result jsonb)
    WITH (fillfactor = 80);
CREATE TABLE floors.event (
    command_id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    seq int NOT NULL,
    kind smallint NOT NULL,
    body jsonb,
    PRIMARY KEY (command_id, seq));
CREATE TABLE floors.outbox (
    command_id bigint PRIMARY KEY,
    due_at timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0);
CREATE INDEX outbox_due ON floors.outbox (due_at);

-- F4, and the first step of F6.
CREATE FUNCTION floors.register(key text, params text, OUT id bigint, OUT status smallint, OUT replayed boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    digest bytea := sha256(convert_to(register.params, 'UTF8'));
    known bytea;
BEGIN
    INSERT INTO floors.command AS c (key, hash, params) VALUES (register.key, digest, register.params::jsonb)
        ON CONFLICT (key) DO NOTHING RETURNING c.id, c.status INTO register.id, register.status;
    replayed := NOT found;
    IF NOT replayed THEN
        INSERT INTO floors.event (command_id, seq, kind) VALUES (register.id, 0, 0);
        INSERT INTO floors.outbox (command_id) VALUES (register.id);
    ELSE
        SELECT c.id, c.status, c.hash INTO register.id, register.status, known
          FROM floors.command c WHERE c.key = register.key;
        IF known <> digest THEN
            RAISE EXCEPTION 'this key has other parameters';
        END IF;
    END IF;
END $$;

-- F6: claim and confirm over arrays, one statement each.
CREATE FUNCTION floors.claim(how_many int) RETURNS TABLE (id bigint, key text, params jsonb, attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    taken bigint[] := ARRAY(
        SELECT o.command_id FROM floors.outbox o WHERE o.due_at <= clock_timestamp()
         ORDER BY o.due_at LIMIT how_many FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(taken) > 0 THEN
        RETURN QUERY
            WITH lease AS (
                UPDATE floors.outbox o SET due_at = clock_timestamp() + interval '60 s', attempt = o.attempt + 1
                 WHERE o.command_id = ANY (taken) RETURNING o.command_id, o.attempt),
            sent AS (
                UPDATE floors.command c SET status = 1, attempt = lease.attempt, updated_at = now()
                  FROM lease WHERE c.id = lease.command_id RETURNING c.id, c.key, c.params, c.attempt),
            noted AS (
                INSERT INTO floors.event (command_id, seq, kind) SELECT sent.id, sent.attempt * 2 - 1, 1 FROM sent)
            SELECT sent.id, sent.key, sent.params, sent.attempt FROM sent;
    END IF;
END $$;
CREATE FUNCTION floors.confirm(ids bigint[], answer text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    settled int;
BEGIN
    WITH done AS (
        UPDATE floors.command c SET status = 2, result = answer::jsonb, updated_at = now()
         WHERE c.id = ANY (ids) AND c.status = 1 RETURNING c.id, c.attempt),
    removed AS (
        DELETE FROM floors.outbox o USING done WHERE o.command_id = done.id)
    INSERT INTO floors.event (command_id, seq, kind) SELECT done.id, done.attempt * 2, 2 FROM done;
    GET DIAGNOSTICS settled = ROW_COUNT;
    RETURN settled;
END $$;

-- F6_one: the same rows, one at a time, in plain statements.
CREATE FUNCTION floors.claim_one(OUT id bigint, OUT key text, OUT params jsonb, OUT attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    SELECT o.command_id, o.attempt + 1 INTO claim_one.id, claim_one.attempt
      FROM floors.outbox o WHERE o.due_at <= clock_timestamp() ORDER BY o.due_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF found THEN
        UPDATE floors.outbox o SET due_at = clock_timestamp() + interval '60 s', attempt = claim_one.attempt
         WHERE o.command_id = claim_one.id;
        UPDATE floors.command c SET status = 1, attempt = claim_one.attempt, updated_at = now()
         WHERE c.id = claim_one.id RETURNING c.key, c.params INTO claim_one.key, claim_one.params;
        INSERT INTO floors.event (command_id, seq, kind) VALUES (claim_one.id, claim_one.attempt * 2 - 1, 1);
    END IF;
END $$;
CREATE FUNCTION floors.confirm_one(wanted bigint, answer text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    attempts int;
BEGIN
    UPDATE floors.command c SET status = 2, result = answer::jsonb, updated_at = now()
     WHERE c.id = wanted AND c.status = 1 RETURNING c.attempt INTO attempts;
    IF found THEN
        DELETE FROM floors.outbox o WHERE o.command_id = wanted;
        INSERT INTO floors.event (command_id, seq, kind) VALUES (wanted, attempts * 2, 2);
    END IF;
    RETURN found;
END $$;

-- Q: a plain queue with an archive, and no key, hash or journal. It does what pgmq's send, read and archive do, and
-- stands in for it where pgmq is not installed.
CREATE TABLE floors.queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reads int NOT NULL DEFAULT 0,
    sent_at timestamptz NOT NULL DEFAULT now(),
    visible_at timestamptz NOT NULL,
    message jsonb);
CREATE INDEX queue_visible ON floors.queue (visible_at);
CREATE TABLE floors.archive (
    id bigint PRIMARY KEY,
    reads int NOT NULL,
    sent_at timestamptz NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    visible_at timestamptz NOT NULL,
    message jsonb);
CREATE INDEX archive_archived ON floors.archive (archived_at);
CREATE FUNCTION floors.send(message jsonb) RETURNS bigint
LANGUAGE sql AS $$
    INSERT INTO floors.queue (visible_at, message) VALUES (clock_timestamp(), send.message) RETURNING id
$$;
CREATE FUNCTION floors.read(how_many int) RETURNS SETOF floors.queue
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH taken AS (
            SELECT q.id FROM floors.queue q WHERE q.visible_at <= clock_timestamp()
             ORDER BY q.id LIMIT how_many FOR UPDATE SKIP LOCKED)
        UPDATE floors.queue q SET visible_at = clock_timestamp() + interval '60 s', reads = q.reads + 1
          FROM taken WHERE q.id = taken.id RETURNING q.*;
END $$;
CREATE FUNCTION floors.archive(ids bigint[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    moved int;
BEGIN
    WITH gone AS (DELETE FROM floors.queue q WHERE q.id = ANY (ids) RETURNING q.*)
    INSERT INTO floors.archive (id, reads, sent_at, visible_at, message)
        SELECT gone.id, gone.reads, gone.sent_at, gone.visible_at, gone.message FROM gone;
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;
