\set k random(1, 9223372036854775806)
SELECT * FROM floors.register(:k, :params);
SELECT coalesce(id, 0) AS id FROM floors.claim_one() \gset
SELECT floors.confirm_one(:id, :answer);
