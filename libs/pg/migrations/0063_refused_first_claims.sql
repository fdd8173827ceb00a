-- serves: 60
-- An order that is refused keeps nothing for a first claim, which can never come.
CREATE OR REPLACE FUNCTION close_placements(closed_order uuid)
RETURNS TABLE (placement_id uuid, was text, attempt integer, refusal_status text, refusal_message text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- The locks are taken in one order, so that two calls wait for each other instead of deadlocking. They also wait
    -- for a claim or a settlement that is under way.
    PERFORM FROM placements p WHERE p.order_id = closed_order ORDER BY p.placement_id FOR UPDATE;
    IF EXISTS (SELECT FROM placements p WHERE p.order_id = closed_order AND p.state NOT IN ('accepted', 'failed')) THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH before AS MATERIALIZED (
            SELECT p.placement_id, p.state FROM placements p WHERE p.order_id = closed_order
        ), moved AS (
            UPDATE placements p SET state = 'refused', first_claim = NULL FROM before
            WHERE p.placement_id = before.placement_id
            RETURNING p.placement_id, before.state, p.attempt, p.refusal_status, p.refusal_message
        ), done AS (
            DELETE FROM work WHERE id IN (SELECT moved.placement_id FROM moved)
        )
        SELECT * FROM moved ORDER BY moved.placement_id;
END
$$;
