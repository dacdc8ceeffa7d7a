\set k random(1, :base) * :step
SELECT id, status, attempt, hash, result FROM floors.command WHERE key = :k;
