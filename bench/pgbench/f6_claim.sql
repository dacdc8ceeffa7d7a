SELECT count(*) FROM floors.claim(1);
