-- The start of a cell of the floors.
\ir load_floors.sql
INSERT INTO floors.lone (key, hash, params) SELECT key, hash, params FROM floors.command WHERE status = 2;
VACUUM ANALYZE floors.lone;
