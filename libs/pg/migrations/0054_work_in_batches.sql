-- serves: 24
-- contract: triggers serve the programs of the older schemas, which say nowhere else that there is something to do
-- What the notifier does in batches is work like any other, with the kinds `moved`, `resend` and `notices`
-- (docs/decisions/0035-fewer-kinds-one-truth.md). Each of them has a lane of its own, which is called like it, so that none
-- holds up another. Notifiers of schema 24 look for the same rows in the tables themselves and pass over what is locked.

-- As in 0040 and 0041: each stage sees and changes its own work only.
ALTER POLICY work_of_stage ON work
    USING (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                             WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                             WHEN 'esim_ingress' THEN kind = 'deliver' ELSE true END)
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_ingress' THEN kind IN ('deliver', 'usage', 'give_back') ELSE true END);

-- An endpoint whose URL is new, or whose pause has ended: its waiting deliveries become due. The id is that of the endpoint.
-- The functions have the rights of the owner, because those who change an endpoint or ask for a resend may not insert such
-- work. Work that is there becomes due anew: whoever finishes an earlier move sees by `at` that this one came.
CREATE FUNCTION endpoint_moved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.endpoint_id, 'moved', '', 'moved', NEW.partner_id, now())
    ON CONFLICT (id) DO UPDATE SET at = excluded.at;
    RETURN NULL;
END
$$;
CREATE TRIGGER endpoint_moved AFTER INSERT OR UPDATE OF moving_since ON partner_endpoints
    FOR EACH ROW WHEN (NEW.moving_since IS NOT NULL) EXECUTE FUNCTION endpoint_moved();

-- A resend that runs, under its own id.
CREATE FUNCTION resend_begun() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.resend_id, 'resend', '', 'resend', NEW.partner_id, now())
    ON CONFLICT (id) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER resend_begun AFTER INSERT ON resends
    FOR EACH ROW WHEN (NEW.ended_at IS NULL AND NEW.partner_id IS NOT NULL) EXECUTE FUNCTION resend_begun();

-- The lock of a trigger's creation keeps programs from beginning another one until this commits.
INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT endpoint_id, 'moved', '', 'moved', partner_id, now() FROM partner_endpoints WHERE moving_since IS NOT NULL
    UNION ALL
    SELECT resend_id, 'resend', '', 'resend', partner_id, now() FROM resends WHERE ended_at IS NULL AND partner_id IS NOT NULL
    ON CONFLICT DO NOTHING;
