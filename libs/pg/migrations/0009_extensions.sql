-- serves: 1
-- contract: no column of an older program changes; work of the new kind is seen by provisioners only, and older ones ask for their
-- own kinds.
--
-- Extensions: more data for a delivered eSIM. An extension is bought like a unit, but the eSIM exists already, so it is a row of
-- its own that leads to a topup: ingress stores it, a provisioner finds it in `work` (`extend`, derived from the topup), and
-- `domain::esim_change` says what may follow.
CREATE TABLE extensions (
    -- Our id of the extension at the provider, the same in every attempt.
    extension_id uuid CONSTRAINT extensions_pkey PRIMARY KEY,
    partner_id uuid NOT NULL,
    topup_id text COLLATE "C" NOT NULL,
    provider text NOT NULL,
    -- The partner's own id of it.
    external_id text NOT NULL,
    option_id uuid NOT NULL,
    provider_option_id text NOT NULL,
    -- `asked`, `sending`, `added`, `refused` or `parked`.
    state text NOT NULL DEFAULT 'asked',
    asked_at timestamptz NOT NULL DEFAULT now(),
    -- The last attempt. It is recorded before the provider is called, together with what the provider said of the eSIM just
    -- before, because an eSIM that differs from it shows that the attempt was carried out.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    baseline jsonb,
    -- When a look after that attempt first proved that nothing was added.
    not_added_at timestamptz,
    -- The provider's own id of it.
    reference text,
    -- Whether the provider has sold another eSIM instead, whose profile the topup has got.
    has_new_profile boolean NOT NULL DEFAULT false,
    -- Why it was refused or parked: a code, and what the provider said.
    reason text,
    message text,
    ended_at timestamptz,
    CONSTRAINT extensions_bounds CHECK (
        least(asked_at, attempted_at, not_added_at, ended_at) >= '0001-01-01 00:00:00+00'
        AND greatest(asked_at, attempted_at, not_added_at, ended_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(external_id), octet_length(provider_option_id),
                     octet_length(state), pg_column_size(baseline), octet_length(reference), octet_length(reason),
                     octet_length(message)) <= 100000)
);
-- The same extension is never bought twice, however often it is asked for.
CREATE UNIQUE INDEX extensions_external_id_key ON extensions (partner_id, external_id);
-- A baseline proves one change, so an eSIM has at most one extension whose outcome is open.
CREATE UNIQUE INDEX extensions_open ON extensions (topup_id) WHERE state IN ('asked', 'sending', 'parked');
CREATE INDEX extensions_topup ON extensions (topup_id, asked_at);
-- Those that wait for an operator.
CREATE INDEX extensions_parked ON extensions (provider, ended_at) WHERE state = 'parked';
CREATE POLICY all_rows ON extensions USING (true) WITH CHECK (true);

ALTER TABLE esim_requests
    -- The plan of the eSIM, from 1 on, and the most data and the latest end that its provider has said of it. More of either is the
    -- next plan, of which the partner is told again how it is used (`domain::esim_use`).
    ADD COLUMN plan integer NOT NULL DEFAULT 1,
    ADD COLUMN most_data bigint,
    ADD COLUMN latest_end timestamptz,
    -- What can be added to the eSIM now: the question, and the answer of the provider as a list of its packages.
    ADD COLUMN offers_asked_at timestamptz,
    ADD COLUMN offers jsonb,
    ADD COLUMN offers_at timestamptz,
    DROP CONSTRAINT esim_requests_bounds,
    ADD CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
              not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end) >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message), pg_column_size(reached), pg_column_size(offers)) <= 100000
        AND plan BETWEEN 1 AND 1000000000) NOT VALID;

-- Begins the record of what a provider said of an eSIM, as before, and also returns what is known of its plan.
DROP FUNCTION begin_reading(text);
CREATE FUNCTION begin_reading(of_topup text)
RETURNS TABLE (reached text[], age double precision, plan integer, most_data bigint, latest_end timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM FROM topups t JOIN placements p ON p.placement_id = t.placement_id JOIN orders o ON o.order_id = p.order_id
    WHERE t.topup_id = of_topup AND o.erased_at IS NULL
    FOR KEY SHARE OF o;
    IF FOUND THEN
        RETURN QUERY
            SELECT r.reached, extract(epoch FROM now() - e.ready_at)::float8, r.plan,
                   -- A row of before has only its last reading.
                   coalesce(r.most_data, nullif(r.data_total, 0)), coalesce(r.latest_end, r.ends_at)
            FROM esim_requests r JOIN esims e ON e.topup_id = r.topup_id
            WHERE r.topup_id = of_topup AND e.ready_at IS NOT NULL
            FOR UPDATE OF r;
    END IF;
END
$$;
REVOKE EXECUTE ON FUNCTION begin_reading(text) FROM PUBLIC;
-- Programs of before go on calling it while later migrations wait for their locks.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'esim_provisioner') THEN
        GRANT EXECUTE ON FUNCTION begin_reading(text) TO esim_provisioner;
    END IF;
END
$$;

-- The work that is about a topup and no delivery or placement.
CREATE OR REPLACE FUNCTION work_of_topup(topup_id text) RETURNS uuid[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[derived_id('erase', topup_id), derived_id('usage', topup_id), derived_id('report', topup_id),
                   derived_id('offers', topup_id), derived_id('give_back', topup_id), derived_id('extend', topup_id)] $$;

ALTER POLICY work_of_stage ON work
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_ingress' THEN kind IN ('deliver', 'usage', 'give_back', 'extend') ELSE true END);

-- Whoever ends an extension tells its partner so, also that one was added after all. An eSIM that was extended is looked at soon
-- if its partner wants to hear of its use, which `poll_esims` checks.
CREATE FUNCTION extension_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF NEW.state = 'added' THEN
        UPDATE esim_requests SET poll_at = now() WHERE topup_id = NEW.topup_id;
    END IF;
    PERFORM make_events(
        CASE NEW.state WHEN 'added' THEN 'extension.ready' ELSE 'extension.failed' END, NEW.topup_id, NEW.extension_id::text,
        jsonb_strip_nulls(jsonb_build_object(
            'external_id', NEW.external_id, 'option_id', NEW.option_id, 'has_new_profile', NEW.has_new_profile,
            'reason', CASE WHEN NEW.state = 'refused' THEN NEW.reason END,
            'message', CASE WHEN NEW.state = 'refused' THEN NEW.message END)));
    RETURN NULL;
END
$$;
CREATE TRIGGER extension_ended AFTER UPDATE OF state ON extensions FOR EACH ROW
    WHEN (NEW.state IN ('added', 'refused') AND OLD.state <> NEW.state) EXECUTE FUNCTION extension_ended();

-- Makes the webhooks of a topup due again, to all endpoints, because it has got another eSIM by an extension. An attempt that is
-- in flight has the profile of before, so its result no longer counts.
CREATE FUNCTION deliver_new_profile() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    WITH named AS (
        SELECT e.delivery_id AS id FROM esims e WHERE e.topup_id = NEW.topup_id
        UNION
        SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = NEW.topup_id
    ), chosen AS MATERIALIZED (
        SELECT d.* FROM deliveries d
        WHERE d.delivery_id = ANY (ARRAY (SELECT id FROM named)) AND d.kind = 'topup.ready'
        ORDER BY d.delivery_id FOR UPDATE
    ), kept AS (
        INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
        SELECT delivery_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
        FROM chosen WHERE state = 'delivered' AND attempted_at IS NOT NULL
        ON CONFLICT DO NOTHING
    ), due AS (
        INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
        -- An attempt that may be in flight ends first, so that it does not overtake the new profile.
        SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id,
               CASE WHEN state = 'pending' THEN now() + interval '30 seconds' ELSE now() END
        FROM chosen
        WHERE state <> 'no_endpoint'
        ON CONFLICT (id) DO UPDATE SET at = excluded.at
    ), released AS (
        DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM chosen WHERE state <> 'no_endpoint'))
    )
    UPDATE deliveries d SET state = 'pending', attempt = d.attempt + 1, schedule_start = d.attempt + 1, delivered_at = NULL
    FROM chosen WHERE d.delivery_id = chosen.delivery_id AND chosen.state <> 'no_endpoint';
    RETURN NULL;
END
$$;
CREATE TRIGGER deliver_new_profile AFTER UPDATE OF has_new_profile ON extensions FOR EACH ROW
    WHEN (NEW.has_new_profile AND NOT OLD.has_new_profile) EXECUTE FUNCTION deliver_new_profile();

-- What a provider calls an option; null if the option does not lead to it. The sandbox knows the options of other providers by our
-- id. A function of one expression is part of the statement that calls it, so it costs no call.
CREATE FUNCTION option_at(o options, at_provider text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN o.provider = at_provider THEN o.provider_option_id
            WHEN at_provider = 'sandbox' THEN o.option_id::text
            ELSE (SELECT pair->>'provider_option_id' FROM jsonb_array_elements(o.alternatives) pair
                  WHERE pair->>'provider' = at_provider LIMIT 1) END;

-- Keeps the order of an extension in the tables until the end of the transaction, and returns the extension. The role that settles
-- extensions may lock no orders.
CREATE FUNCTION keep_order_of_extension(kept uuid) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM FROM extensions x
    JOIN topups t ON t.topup_id = x.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE x.extension_id = kept
    FOR KEY SHARE OF o;
    RETURN NEXT kept;
END
$$;
REVOKE EXECUTE ON FUNCTION keep_order_of_extension(uuid) FROM PUBLIC;

-- Ends a parked extension as an operator has found it at the provider. Whoever resolves extensions needs no right to change their
-- rows, so it cannot make one that nobody has asked for. Returns false if the extension is not parked after this attempt.
CREATE FUNCTION resolve_extension(resolved uuid, after_attempt integer, is_added boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE extensions
    SET state = CASE WHEN is_added THEN 'added' ELSE 'refused' END, ended_at = now(), reason = 'resolved', message = NULL,
        not_added_at = NULL
    WHERE extension_id = resolved AND state = 'parked' AND attempt = after_attempt;
    RETURN FOUND;
END
$$;
REVOKE EXECUTE ON FUNCTION resolve_extension(uuid, integer, boolean) FROM PUBLIC;
