-- no-transaction
-- serves: 18
CREATE UNIQUE INDEX CONCURRENTLY esims_code_key ON esims (code_digest) WHERE code_digest IS NOT NULL;
