\set k random(1, 9223372036854775806)
SELECT * FROM floors.register(:k, :params);
