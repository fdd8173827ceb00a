-- serves: 69
-- contract: what goes was only used by programs that let a cell divide
ALTER TABLE system DROP CONSTRAINT system_cell_bounds, DROP COLUMN cell, DROP COLUMN cut;
ALTER TABLE partners
    DROP CONSTRAINT partners_bounds,
    DROP COLUMN moved_to,
    ADD CONSTRAINT partners_bounds CHECK (
        least(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key),
                     octet_length(secret_key), octet_length(old_secret_key)) <= 100000) NOT VALID;
