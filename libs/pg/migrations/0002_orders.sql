-- serves: 2
-- Orders and what becomes of them: placements (what is bought together), topups (one per unit) and eSIMs.
--
-- Single statements write these rows in batches, and nothing deletes them. An order is written together with all its
-- parts, so references hold by construction. There are no foreign keys: checking one would lock the referenced row for
-- each inserted one. There are no checks of states either, because PostgreSQL parses a check from its text at each
-- execution of each statement; the enums of `libs/domain` write the states, and the test `machine` holds them together.

CREATE TABLE orders (
    order_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    external_order_id text NOT NULL,
    -- The order was answered with 422, or cancelled: nothing of it was bought, and its external id is free again.
    refused_at timestamptz,
    -- The create-order request is answered before this time, or never.
    answer_by timestamptz NOT NULL,
    -- The ingress process whose request may still be answered with 422 until `answer_by`, and which passes on the
    -- readiness events of the order once its answer has left. Null: the answer does not depend on a verdict.
    answering uuid,
    -- W3C trace context of the POST.
    traceparent text,
    -- The partner cancelled the order before anything of it was bought. Such an order is refused, too.
    cancelled_at timestamptz,
    erased_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- One order of a partner and external id may stand, beside any number of refused ones. The external id comes first,
    -- so that the same index finds the orders of all partners with this id.
    CONSTRAINT orders_external_order_id_key
        UNIQUE NULLS NOT DISTINCT (external_order_id, partner_id, refused_at)
);
-- A partner lists its orders in the order of time: ids begin with the time.
CREATE INDEX orders_partner ON orders (partner_id, order_id);

-- The unit of purchase: the part of an order that is bought from one provider. The states and their transitions are
-- `domain::placement`. Only the placement's own row changes while it is bought, and no index covers a changed column,
-- so these updates stay in the row's page (HOT); the free room in each page is for them.
CREATE TABLE placements (
    placement_id uuid PRIMARY KEY,
    order_id uuid NOT NULL,
    partner_id uuid NOT NULL,
    provider text NOT NULL,
    -- What fails together at the provider, usually one option.
    lane text NOT NULL,
    state text NOT NULL DEFAULT 'accepted',
    -- The last attempt. It is recorded before the provider is called.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    -- When a look-up after that attempt first found no purchase.
    not_found_at timestamptz,
    -- How many responses in a row left the outcome of that attempt unknown.
    unknowns integer NOT NULL DEFAULT 0,
    placed_at timestamptz,
    -- The next collect that a provider's callback has brought forward.
    hinted_at timestamptz,
    reason text,
    -- What the provider said when it rejected the purchase.
    refusal_status text,
    refusal_message text,
    -- Parked although something of it is bought, so only an operator moves it.
    disputed boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 60);
CREATE INDEX placements_order ON placements (order_id);
-- The sweep reads the placements of two seconds, once a second.
CREATE INDEX placements_created ON placements (created_at);

-- One unit of an order, named by the id that the partner got. The collation "C" compares bytes, which is all that
-- digits need.
CREATE TABLE topups (
    topup_id text COLLATE "C" CONSTRAINT topups_topup_id_key PRIMARY KEY,
    placement_id uuid NOT NULL,
    -- The place in the response of create-order, from 0.
    position integer NOT NULL,
    option_id uuid NOT NULL,
    -- What to buy, as the catalogue said when the order was accepted.
    provider_option_id text NOT NULL,
    -- `pending` or `failed`; ready is the unit whose eSIM has a `ready_at`.
    state text NOT NULL DEFAULT 'pending',
    reason text
);
CREATE INDEX topups_placement ON topups (placement_id);

-- A unit that the provider has named, with its profile once there is one. A row is updated only if the profile comes
-- later than the unit, and when its profile is erased.
CREATE TABLE esims (
    topup_id text COLLATE "C" PRIMARY KEY,
    provider text NOT NULL,
    provider_unit_id text NOT NULL,
    iccid text,
    -- SM-DP+ address, activation code and expiry date, encrypted: whoever has them can use the line.
    profile bytea,
    ready_at timestamptz,
    -- The delivery that was created together with the profile.
    delivery_id uuid,
    erased_at timestamptz
) WITH (fillfactor = 70);
-- No unit and no line is ever assigned twice, whatever a provider responds.
CREATE UNIQUE INDEX esims_provider_unit_key ON esims (provider, provider_unit_id);
CREATE UNIQUE INDEX esims_iccid_key ON esims (provider, iccid) WHERE iccid IS NOT NULL;

-- Refuses all placements of an order if nothing of it is bought and no attempt is open; otherwise it changes and
-- returns nothing. Ingress may call this function and may not update placements, so that even with its credentials
-- nobody can move a placement that is being bought.
CREATE FUNCTION close_placements(closed_order uuid)
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
            UPDATE placements p SET state = 'refused' FROM before
            WHERE p.placement_id = before.placement_id
            RETURNING p.placement_id, before.state, p.attempt, p.refusal_status, p.refusal_message
        ), done AS (
            DELETE FROM work WHERE id IN (SELECT moved.placement_id FROM moved)
        )
        SELECT * FROM moved ORDER BY moved.placement_id;
END
$$;
REVOKE EXECUTE ON FUNCTION close_placements(uuid) FROM PUBLIC;
