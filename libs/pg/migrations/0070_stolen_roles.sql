-- serves: 68
-- contract: programs of schema 68 call close_placements, and none of them is installed anywhere
-- What the database role of one program alone must not be able to do (docs/security.md).

-- Refuses an order for ingress, or cancels it: all of its placements, its units and the order itself, or nothing. It returns
-- the placements that it has moved, and none if something of the order is bought or may be. Ingress has no privilege to change
-- these columns itself, so its role alone neither frees the external id of a bought order nor fails a unit that is in flight.
CREATE FUNCTION refuse_order(refused_order uuid, is_cancelled boolean)
RETURNS TABLE (placement_id uuid, was text, attempt integer, refusal_status text, refusal_message text, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- The locks are taken in one order, so that two calls wait for each other instead of deadlocking. They also wait
    -- for a claim or a settlement that is under way, whose outcome the next statements see.
    PERFORM FROM placements p WHERE p.order_id = refused_order ORDER BY p.placement_id FOR UPDATE;
    IF EXISTS (SELECT FROM placements p WHERE p.order_id = refused_order AND p.state NOT IN ('accepted', 'failed')) THEN
        RETURN;
    END IF;
    -- Before the units, because the trigger topup_failed tells no partner of the units of a refused order.
    UPDATE orders o SET refused_at = now(), cancelled_at = CASE WHEN is_cancelled THEN now() END
    WHERE o.order_id = refused_order AND o.refused_at IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH before AS MATERIALIZED (
            SELECT p.placement_id, p.state FROM placements p WHERE p.order_id = refused_order
        ), moved AS (
            -- An order that is refused keeps nothing for a first claim, which can never come.
            UPDATE placements p SET state = 'refused', first_claim = NULL FROM before
            WHERE p.placement_id = before.placement_id
            RETURNING p.placement_id, before.state, p.attempt, p.refusal_status, p.refusal_message, p.reason
        ), done AS (
            DELETE FROM work WHERE id IN (SELECT moved.placement_id FROM moved)
        ), failed AS (
            -- A unit gets the reason of its placement if there is one.
            UPDATE topups t
            SET state = 'failed',
                reason = coalesce(moved.reason, CASE WHEN is_cancelled THEN 'order_cancelled' ELSE 'order_refused' END)
            FROM moved WHERE t.placement_id = moved.placement_id
        )
        SELECT * FROM moved ORDER BY moved.placement_id;
END
$$;
REVOKE EXECUTE ON FUNCTION refuse_order(uuid, boolean) FROM PUBLIC;
DROP FUNCTION close_placements(uuid);

-- Resolves a parked placement as an operator has decided: `bought`, perhaps at another provider of its, `not_bought`, or
-- `retry`. It changes nothing and returns false if the placement is not parked, if its order was refused and it is not given
-- up, if a unit is known and it is to be bought again or is said to be somewhere else, or if that provider cannot have it.
-- So the role of the console can resolve what waits for an operator, and nothing else.
CREATE FUNCTION resolve_placement(of_placement uuid, decision text, at_provider text, at_reference text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    parked placements;
    goes_on boolean := decision IN ('bought', 'retry');
    has_units boolean;
    pair jsonb;
    new_state text;
BEGIN
    IF decision NOT IN ('bought', 'not_bought', 'retry') OR (at_provider IS NOT NULL AND decision <> 'bought') THEN
        RAISE EXCEPTION 'the decision % at % is unknown', decision, at_provider USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO parked FROM placements WHERE placement_id = of_placement FOR UPDATE;
    IF NOT FOUND OR parked.state <> 'parked'
       OR (goes_on AND (SELECT refused_at IS NOT NULL FROM orders WHERE order_id = parked.order_id)) THEN
        RETURN false;
    END IF;
    has_units := EXISTS (SELECT FROM topups t JOIN esims e ON e.topup_id = t.topup_id WHERE t.placement_id = of_placement);
    IF has_units AND (decision = 'retry' OR at_provider IS NOT NULL) THEN
        RETURN false;
    END IF;
    IF at_provider IS NOT NULL THEN
        SELECT one INTO pair
        FROM jsonb_array_elements(coalesce(parked.alternatives, '[]') || coalesce(parked.tried, '[]')) one
        WHERE one->>'provider' = at_provider LIMIT 1;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        -- The units get the names that this provider has for their options.
        UPDATE topups SET provider_option_id = coalesce(pair->'options'->>option_id::text, provider_option_id)
        WHERE placement_id = of_placement;
    END IF;
    new_state := CASE decision WHEN 'bought' THEN 'placed' WHEN 'retry' THEN 'accepted' ELSE 'failed' END;
    UPDATE placements
    SET state = new_state, not_found_at = NULL, unknowns = 0, disputed = false,
        placed_at = CASE WHEN decision = 'bought' THEN now() END,
        -- A retry is another purchase, so look-ups must not ask about the old one. The stored reference is that of the
        -- placement's own provider.
        provider_reference = CASE WHEN decision = 'bought' AND at_reference IS NOT NULL THEN at_reference
                                  WHEN decision <> 'retry' AND at_provider IS NULL THEN provider_reference END,
        provider = coalesce(pair->>'provider', provider), lane = coalesce(pair->>'lane', lane),
        reason = CASE WHEN NOT goes_on THEN 'given_up' END,
        -- The operator has looked at this provider only, so no other one may be asked.
        alternatives = NULL
    WHERE placement_id = of_placement;
    -- Its collect or its next attempt is due, or nothing is left to do. In any case it no longer waits in `held`.
    IF goes_on THEN
        INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
        SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id, now()
        FROM placements WHERE placement_id = of_placement
        ON CONFLICT (id) DO UPDATE
        SET kind = excluded.kind, at = excluded.at, provider = excluded.provider, lane = excluded.lane;
    ELSE
        DELETE FROM work WHERE id = of_placement;
    END IF;
    DELETE FROM held WHERE id = of_placement;
    -- Units follow their placement. A unit with a profile stays ready. If the placement goes on, failed units without an eSIM
    -- get another chance; otherwise all units without a profile fail.
    UPDATE topups t
    SET state = CASE WHEN goes_on THEN 'pending' ELSE 'failed' END, reason = CASE WHEN NOT goes_on THEN 'given_up' END
    WHERE placement_id = of_placement
      AND CASE WHEN goes_on THEN state = 'failed' AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = t.topup_id)
               ELSE state = 'pending' AND NOT EXISTS (
                   SELECT FROM esims e WHERE e.topup_id = t.topup_id AND e.ready_at IS NOT NULL) END;
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION resolve_placement(uuid, text, text, text) FROM PUBLIC;

-- A link from a topup leads to a webhook about this topup at a further endpoint of the same partner. It is looked at when its
-- transaction commits, because the webhook is inserted by the same statement.
CREATE FUNCTION further_delivery_of_its_topup() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- Both may be gone by then.
    IF EXISTS (
        SELECT FROM further_deliveries f
        LEFT JOIN deliveries d ON d.delivery_id = f.delivery_id
        WHERE f.topup_id = NEW.topup_id AND f.delivery_id = NEW.delivery_id
          AND (d.topup_id = f.topup_id AND d.endpoint_id IS NOT NULL
               AND d.partner_id = (SELECT e.partner_id FROM partner_endpoints e WHERE e.endpoint_id = d.endpoint_id)
               AND d.partner_id = (SELECT p.partner_id FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                                   WHERE t.topup_id = f.topup_id)) IS NOT TRUE
    ) THEN
        RAISE EXCEPTION 'delivery % is not one of topup % to a further endpoint of its partner', NEW.delivery_id, NEW.topup_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER further_delivery_of_its_topup AFTER INSERT ON further_deliveries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION further_delivery_of_its_topup();

-- What a partner sees of a unit is what became of a webhook of its own.
CREATE OR REPLACE VIEW partner_units AS
SELECT o.partner_id, o.order_id, o.external_order_id, t.topup_id, t.position, t.option_id,
       CASE WHEN e.ready_at IS NOT NULL THEN 'ready' WHEN t.state = 'failed' THEN 'failed'
            WHEN p.state = 'parked' THEN 'on_hold' ELSE 'processing' END AS state,
       p.refusal_status, p.refusal_message, e.iccid, e.profile, e.ready_at, e.erased_at, e.delivery_id,
       d.state AS delivery, d.attempt, d.attempted_at, d.delivered_at, d.created_at AS delivery_created_at, e.returned_at,
       t.state = 'failed' AS has_failed, p.state = 'parked' AS is_parked
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id AND d.partner_id = o.partner_id;

-- The check in it is one of the caller's privileges, so a table of the caller must not stand in the way of `system`.
ALTER FUNCTION next_configuration_version() SET search_path = public, pg_temp;

-- Who may write which record. The time and the role come from the database (libs/pg/roles grants no other column), and the name
-- and the way are those that the role can have: ingress acts for partners only, and the console for somebody who has an account
-- or a session. Every role may call the function, because PostgreSQL demands that of a policy's expression as a whole.
CREATE FUNCTION acts_at_the_console(asked_name text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT EXISTS (SELECT FROM operators WHERE name = asked_name AND disabled_at IS NULL)
           OR EXISTS (SELECT FROM operator_sessions WHERE name = asked_name AND ends_at > now())
$$;
ALTER TABLE operator_actions ENABLE ROW LEVEL SECURITY;
CREATE POLICY actions_readable ON operator_actions FOR SELECT USING (true);
CREATE POLICY actions_end ON operator_actions FOR DELETE USING (true);
CREATE POLICY actions_of_role ON operator_actions FOR INSERT WITH CHECK (
    CASE current_user
        WHEN 'esim_ingress' THEN operator = 'partner' AND via = 'api'
        WHEN 'esim_console' THEN operator <> 'partner' AND via = 'console' AND acts_at_the_console(operator)
        WHEN 'esim_operator' THEN operator <> 'partner' AND coalesce(via, 'esimctl') = 'esimctl'
        ELSE true
    END);
ALTER TABLE resends ENABLE ROW LEVEL SECURITY;
CREATE POLICY resends_readable ON resends FOR SELECT USING (true);
CREATE POLICY resends_go_on ON resends FOR UPDATE USING (true);
CREATE POLICY resends_end ON resends FOR DELETE USING (true);
CREATE POLICY resends_of_role ON resends FOR INSERT WITH CHECK (
    CASE current_user
        WHEN 'esim_ingress' THEN asked_by = 'partner' AND via = 'api'
        WHEN 'esim_console' THEN asked_by <> 'partner' AND via = 'console'
        WHEN 'esim_operator' THEN asked_by <> 'partner' AND via = 'esimctl'
        ELSE true
    END);
ALTER TABLE history ENABLE ROW LEVEL SECURITY;
CREATE POLICY history_readable ON history FOR SELECT USING (true);
CREATE POLICY history_erased ON history FOR UPDATE USING (true);
CREATE POLICY history_ends ON history FOR DELETE USING (true);
-- That an operator has resolved something is written by those through whom operators do so.
CREATE POLICY history_of_role ON history FOR INSERT WITH CHECK (current_user <> 'esim_provisioner' OR kind <> 'resolved');

-- On all other tables row-level security is off. Should somebody switch it on, these policies keep every row visible, because
-- otherwise a stored order would seem to be unknown.
DO $$
DECLARE
    one regclass;
BEGIN
    FOR one IN
        SELECT oid FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND pg_has_role(relowner, 'USAGE')
          AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid)
    LOOP
        EXECUTE format('CREATE POLICY all_rows ON %s USING (true) WITH CHECK (true)', one);
    END LOOP;
END
$$;
