-- serves: 14
-- With its own database role ingress can refuse a placement of which nothing was bought, and moves none otherwise.
-- AFTER: a BEFORE trigger would lock each updated row once more.
CREATE FUNCTION ingress_only_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = format('ingress may not move placement %s from %s to %s',
        OLD.placement_id, OLD.state, NEW.state);
END
$$;
CREATE TRIGGER ingress_only_refuses AFTER UPDATE OF state ON placements
    FOR EACH ROW
    WHEN (current_user = 'esim_ingress' AND (OLD.state NOT IN ('accepted', 'failed') OR NEW.state <> 'refused'))
    EXECUTE FUNCTION ingress_only_refuses();
