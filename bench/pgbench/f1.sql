\set k random(1, 9223372036854775806)
INSERT INTO floors.lone (key, hash, params) VALUES (:k, sha256(convert_to(:params, 'UTF8')), :params) ON CONFLICT DO NOTHING;
