\set k random(1, 9223372036854775806)
WITH c AS (INSERT INTO floors.command (key, hash, params) VALUES (:k, sha256(convert_to(:params, 'UTF8')), :params) ON CONFLICT (key) DO NOTHING RETURNING id), e AS (INSERT INTO floors.event (command_id, seq, kind) SELECT id, 0, 0 FROM c) INSERT INTO floors.outbox (command_id) SELECT id FROM c RETURNING command_id;
