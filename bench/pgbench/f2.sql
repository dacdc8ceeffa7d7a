\set k random(1, 9223372036854775806)
BEGIN;
INSERT INTO floors.command (key, hash, params) VALUES (:k, sha256(convert_to(:params, 'UTF8')), :params) ON CONFLICT (key) DO NOTHING RETURNING id \gset
INSERT INTO floors.event (command_id, seq, kind) VALUES (:id, 0, 0);
INSERT INTO floors.outbox (command_id) VALUES (:id);
COMMIT;
