-- serves: 55
-- Notifiers keep the endpoints of partners in memory, and a statement that reads fresh deliveries returns nothing if the
-- configuration has another version than the one of which they know them. So whatever decides where a webhook goes, and
-- what signs it, raises that version in the transaction that changes it: the URL, the secrets, the headers, the purpose, the
-- begin of a block or pause, and the end of the endpoint. A block that only becomes longer changes nothing, because a
-- blocked endpoint is never used from memory. The triggers run at the commit, so that the one row of `system` is locked
-- last and shortly. A transaction that changes partners first and endpoints after them can still meet one in a deadlock,
-- which PostgreSQL ends, and the notifier repeats what it records.
CREATE FUNCTION endpoint_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE system SET version = version + 1;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER endpoint_changed AFTER UPDATE ON partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ((OLD.url, OLD.secrets, OLD.secret_ends, OLD.headers, OLD.purpose, OLD.blocked_until IS NULL)
          IS DISTINCT FROM (NEW.url, NEW.secrets, NEW.secret_ends, NEW.headers, NEW.purpose, NEW.blocked_until IS NULL))
    EXECUTE FUNCTION endpoint_changed();
CREATE CONSTRAINT TRIGGER endpoint_deleted AFTER DELETE ON partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION endpoint_changed();

-- What the webhook of a ready unit says beside its profile, so that a fresh delivery is read without the order and the
-- topup. Settlements fill them in. They are null on all other deliveries and on those of programs of older schemas, and the
-- notifier reads the order and the topup there.
ALTER TABLE deliveries
    ADD COLUMN option_id uuid,
    ADD COLUMN external_order_id text,
    ADD COLUMN traceparent text,
    ADD COLUMN ordered_at timestamptz;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_unit_bounds CHECK (
    ordered_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(external_order_id), octet_length(traceparent)) <= 100000) NOT VALID;
