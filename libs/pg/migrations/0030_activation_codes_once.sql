-- serves: 18
-- A keyed digest of the SM-DP+ address and the activation code of each eSIM. It is unique over all providers (the next
-- migrations), because a provider that sends one code twice must not give one eSIM to two partners. Profiles of older
-- versions have none until `esimctl master-key reencrypt` seals them under a new key.
ALTER TABLE esims ADD COLUMN code_digest bytea;
ALTER TABLE esims ADD CONSTRAINT esims_code_digest_bounds CHECK (octet_length(code_digest) <= 100000) NOT VALID;
