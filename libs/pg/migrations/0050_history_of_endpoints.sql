-- serves: 24
-- A block of an endpoint and its end are remembered, whichever statement sets them: a failed attempt, an acknowledgement,
-- a new URL, or an operator.
CREATE FUNCTION endpoint_blocked() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO history (endpoint_id, kind, after)
    VALUES (NEW.endpoint_id, CASE WHEN NEW.blocks > 0 THEN 'blocked' ELSE 'unblocked' END,
            CASE WHEN NEW.blocks > 0 THEN jsonb_build_object('failures', NEW.failures) END);
    RETURN NULL;
END
$$;
CREATE TRIGGER endpoint_blocked_at_once AFTER INSERT ON partner_endpoints FOR EACH ROW
    WHEN (NEW.blocks > 0) EXECUTE FUNCTION endpoint_blocked();
CREATE TRIGGER endpoint_blocked AFTER UPDATE OF blocks ON partner_endpoints FOR EACH ROW
    WHEN ((NEW.blocks > 0) <> (OLD.blocks > 0)) EXECUTE FUNCTION endpoint_blocked();
