-- serves: 24
-- contract: a trigger serves the programs of the older schemas, which say and ask `esim_requests.at` when a request is due
-- What partners ask about delivered eSIMs is work like any other, with the kinds `usage` and `give_back`
-- (docs/decisions/0035-fewer-kinds-one-truth.md). `lane` is the topup, and the id is derived from kind and topup.
-- `esim_requests` keeps what was asked and answered.

-- Ingress asks, so it inserts such rows. It changes none.
ALTER POLICY work_of_stage ON work
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind <> 'erase'
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase')
                                  WHEN 'esim_ingress' THEN kind IN ('deliver', 'usage', 'give_back') ELSE true END);

-- Ingress of an older schema makes a request due with `at`, and a provisioner of one leases it there. A provisioner of this
-- schema clears `at` when it claims the row of `work`, so the other one leaves the request alone. The function has the
-- rights of the owner, because ingress may not change rows of `work` about requests.
CREATE FUNCTION request_due() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
    SELECT md5(open.kind || ' ' || NEW.topup_id)::uuid, open.kind, NEW.provider, NEW.topup_id, NEW.partner_id, NEW.at
    FROM (SELECT 'usage' AS kind WHERE NEW.usage_asked_at IS NOT NULL
          UNION ALL
          SELECT 'give_back' WHERE NEW.give_back NOT IN ('returned', 'refused', 'parked')) open
    ON CONFLICT (id) DO UPDATE SET at = excluded.at;
    RETURN NULL;
END
$$;
CREATE TRIGGER request_due AFTER INSERT OR UPDATE OF at ON esim_requests FOR EACH ROW WHEN (NEW.at IS NOT NULL)
    EXECUTE FUNCTION request_due();

-- The lock of the trigger's creation keeps programs from changing a request until this commits.
INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT md5('usage ' || topup_id)::uuid, 'usage', provider, topup_id, partner_id, at
    FROM esim_requests WHERE at IS NOT NULL AND usage_asked_at IS NOT NULL
    UNION ALL
    SELECT md5('give_back ' || topup_id)::uuid, 'give_back', provider, topup_id, partner_id, at
    FROM esim_requests WHERE at IS NOT NULL AND give_back NOT IN ('returned', 'refused', 'parked')
    ON CONFLICT DO NOTHING;
