-- serves: 55
-- contract: no statement of schema 55 names what goes here; programs of schema 54 and older cannot run beside this one
-- What only programs of older schemas needed (docs/decisions/0035-fewer-kinds-one-truth.md). Migrations 0039 to 0043 and 0053
-- left views under old names for them, and triggers that kept old columns equal to the new rows. So everything that is dropped
-- here is stored elsewhere: nothing is lost.

-- Endpoints, which are rows of `partner_endpoints` (0042).
DROP VIEW endpoints;
DROP VIEW further_endpoints;
DROP TRIGGER first_endpoint_changed ON partner_endpoints;
DROP TRIGGER health_of_endpoint ON partner_endpoints;
DROP TRIGGER partner_changed ON partners;
DROP TRIGGER partner_created ON partners;
DROP FUNCTION change_further_endpoint();
DROP FUNCTION forget_health();
DROP FUNCTION health_of_endpoint();
DROP FUNCTION first_endpoint_from_partner();
DROP FUNCTION partner_from_first_endpoint();
DROP FUNCTION secret_list(bytea, bytea, timestamptz);
DROP FUNCTION secret_end_list(bytea, bytea, timestamptz);

-- The constraint names columns that go.
ALTER TABLE partners
    DROP CONSTRAINT partners_bounds,
    DROP COLUMN webhook_host,
    DROP COLUMN webhook_url,
    DROP COLUMN webhook_secret,
    DROP COLUMN old_webhook_secret,
    DROP COLUMN old_webhook_secret_until,
    DROP COLUMN webhook_events,
    ADD CONSTRAINT partners_bounds CHECK (
        least(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key),
                     octet_length(moved_to), octet_length(secret_key), octet_length(old_secret_key)) <= 100000) NOT VALID;

-- A partner has its first endpoint from the beginning, whoever creates it.
CREATE FUNCTION first_endpoint() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, created_at)
    VALUES (NEW.partner_id, NEW.partner_id, 0, NEW.created_at)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_created AFTER INSERT ON partners FOR EACH ROW EXECUTE FUNCTION first_endpoint();

-- Resends (0043, 0053).
DROP VIEW redeliveries;
DROP VIEW operations;
DROP VIEW operation_parts;
DROP FUNCTION begin_operation();
DROP FUNCTION join_operation();

-- Walks, the row of the system, and the partners of archives (0039).
DROP VIEW sweeps;
DROP VIEW retention;
DROP VIEW configuration_version;
DROP VIEW source_addresses;
DROP VIEW archive_partners;

-- Work of retention and of requests about eSIMs (0040, 0041). The column `at` stays until no program of schema 55 runs any
-- more, because its claim sets it to null.
DROP VIEW retention_due;
DROP FUNCTION insert_retention_due();
DROP TRIGGER request_due ON esim_requests;
DROP FUNCTION request_due();
DROP INDEX esim_requests_due;

-- Figures by the hour, which are in `minutely` (0029).
DROP TABLE hourly;
