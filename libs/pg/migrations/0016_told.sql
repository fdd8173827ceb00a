-- serves: 1
-- What partners are told of money: that a balance is low, what an event is about costs, and which options and prices have
-- changed. Programs that do not know the new events tell nothing of them.
--
-- The threshold of an account: its partner is told, by the event `balance.low`, when less than this is available.
ALTER TABLE accounts
    ADD COLUMN warn_below bigint,
    -- The threshold that the partner was told of, until as much is available again.
    ADD COLUMN told_below bigint,
    ADD CONSTRAINT accounts_warn_below CHECK (warn_below BETWEEN 0 AND 1000000000000) NOT VALID;

-- Tells partners whose account has less available than the threshold that they have set, each time that it falls below: this
-- partner, or all of them if it is null. Returns the number of new events. Ingress and notifiers call it; it writes what an event
-- says itself, so that no stage can invent that.
--
-- `crossed` locks the accounts of enabled partners whose threshold is not the one that was told, in the order in which all lock
-- accounts; of two processes the second one waits, and finds that the first one has told it. `told` remembers the threshold that
-- is told, or that there is none any more, so the next fall is told again. A new threshold is another one, so it is compared
-- afresh. An account without a limit has always enough.
CREATE FUNCTION tell_low_balances(of_partner uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    events bigint;
BEGIN
    WITH crossed AS MATERIALIZED (
        SELECT a.partner_id, a.currency FROM accounts a JOIN partners p ON p.partner_id = a.partner_id
        WHERE a.told_below IS DISTINCT FROM CASE WHEN a.posted - a.held + a.credit_limit < a.warn_below THEN a.warn_below END
          AND p.disabled_at IS NULL AND (of_partner IS NULL OR a.partner_id = of_partner)
        ORDER BY a.partner_id, a.currency
        FOR NO KEY UPDATE OF a
    ), told AS (
        UPDATE accounts a
        SET told_below = CASE WHEN a.posted - a.held + a.credit_limit < a.warn_below THEN a.warn_below END
        FROM crossed c WHERE a.partner_id = c.partner_id AND a.currency = c.currency
        RETURNING a.partner_id, a.told_below, jsonb_build_object(
            'currency', a.currency, 'available', a.posted - a.held + a.credit_limit, 'threshold', a.told_below,
            'as_of', clock_timestamp(), 'last_entry', a.last_entry) AS says
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, notice)
        SELECT gen_random_uuid(), t.partner_id, 'balance.low', nullif(e.endpoint_id, e.partner_id), t.says
        FROM told t JOIN partner_endpoints e ON e.partner_id = t.partner_id
        WHERE t.told_below IS NOT NULL AND 'balance.low' = ANY (e.events)
        RETURNING delivery_id, partner_id, endpoint_id
    ), due AS (
        INSERT INTO work (id, kind, provider, lane, partner_id, at)
        SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now() FROM created
        RETURNING id
    )
    SELECT count(*) INTO events FROM due;
    RETURN events;
END
$$;
REVOKE EXECUTE ON FUNCTION tell_low_balances(uuid) FROM PUBLIC;

-- An event about an order or an extension says what that costs, in the form of a price among the terms of a unit
-- (`store::deliveries::events::price_of`). Where nothing has a price it says nothing of it.
CREATE OR REPLACE FUNCTION order_cancelled() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM make_events('order.cancelled', min(t.topup_id), NULL, jsonb_strip_nulls(jsonb_build_object(
        'units', count(*),
        'price', CASE WHEN bool_or(t.terms::jsonb ? 'price') THEN jsonb_build_object(
            'amount', sum((t.terms::jsonb->'price'->>'amount')::bigint),
            'currency', min(t.terms::jsonb->'price'->>'currency')) END)))
    FROM placements p JOIN topups t ON t.placement_id = p.placement_id
    WHERE p.order_id = NEW.order_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION extension_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF NEW.state = 'added' THEN
        UPDATE esim_requests SET poll_at = now() WHERE topup_id = NEW.topup_id;
    END IF;
    PERFORM make_events(
        CASE NEW.state WHEN 'added' THEN 'extension.ready' ELSE 'extension.failed' END, NEW.topup_id, NEW.extension_id::text,
        jsonb_strip_nulls(jsonb_build_object(
            'external_id', NEW.external_id, 'option_id', NEW.option_id, 'has_new_profile', NEW.has_new_profile,
            'price', CASE WHEN NEW.price IS NOT NULL THEN
                jsonb_build_object('amount', NEW.price, 'currency', NEW.currency) END,
            'reason', CASE WHEN NEW.state = 'refused' THEN NEW.reason END,
            'message', CASE WHEN NEW.state = 'refused' THEN NEW.message END)));
    RETURN NULL;
END
$$;

-- What the partner of an endpoint could order when the endpoint was told of it last, as `store::deliveries::offers` writes it, and
-- by which versions of the catalogue and the price list. Null if the endpoint does not ask for `options.changed`. A document of a
-- large catalogue is larger than what others are, so it has a bound of its own.
ALTER TABLE partner_endpoints
    ADD COLUMN offered jsonb,
    ADD COLUMN offered_by text,
    ADD CONSTRAINT partner_endpoints_offered CHECK (pg_column_size(offered) <= 10000000 AND octet_length(offered_by) <= 100000) NOT VALID;

-- By which versions an option is offered with this price list: of the catalogue, and of the list with the last price that is valid.
-- As long as the text is the same, the same is offered.
CREATE FUNCTION offered_by(list text) RETURNS text
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
    SELECT concat_ws(' ', (SELECT max(o.version) FROM options o), list,
                     (SELECT l.version FROM price_lists l WHERE l.price_list = list),
                     (SELECT extract(epoch FROM max(p.valid_from)) FROM prices p WHERE p.price_list = list AND p.valid_from <= now()))
$$;

-- Sets the balance of a sandbox account, by an adjustment, because nothing is paid there. Its partner does so to rehearse what
-- happens when there is too little. Returns whether it has such an account.
CREATE FUNCTION set_sandbox_balance(of_partner uuid, in_currency text, target bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    was bigint;
BEGIN
    SELECT a.posted INTO was FROM accounts a JOIN partners p ON p.partner_id = a.partner_id
    WHERE a.partner_id = of_partner AND a.currency = in_currency AND p.environment = 'sandbox'
    FOR NO KEY UPDATE OF a;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF was <> target THEN
        PERFORM add_entry(of_partner, in_currency, 'adjustment', target - was, 0, NULL, NULL, 'sandbox ' || gen_random_uuid(),
                          'set by the partner in the sandbox', 'partner');
        PERFORM tell_low_balances(of_partner);
    END IF;
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION set_sandbox_balance(uuid, text, bigint) FROM PUBLIC;
