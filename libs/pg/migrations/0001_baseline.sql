-- serves: 1
-- The whole schema, by subject. Later migrations change it; what they must keep is in CONTRIBUTING.md, "Add a migration".
--
-- 1. The system: its configuration's version, and how far its walks have come
-- 2. Partners, their endpoints, and the options that they may order
-- 3. Orders, placements (what is bought together), topups (one per unit) and eSIMs
-- 4. Deliveries of webhooks, and their attempts
-- 5. Work: what a stage must do, and what waits for a person
-- 6. Providers: breakers, lanes that wait, and shares of rate limits
-- 7. What did not go straight, figures, and refused requests
-- 8. Resends
-- 9. What partners ask about a delivered eSIM
-- 10. Operators and what they did
-- 11. Archives
-- 12. Commits that a server has lost
-- 13. The rights of the stages in shared tables
--
-- Three rules hold for all tables.
--
-- Bounds. What a role may store is bounded, because other programs read it. A time that is infinite or lies outside of the
-- years 1 to 9999 cannot be held by our programs and would end each one that reads it, and a reason of 130 MB would fill their
-- memory. So each table has one constraint `…_bounds`: its times are finite and in these years, and none of its texts,
-- documents and sealed values is larger than 100,000 bytes, far more than any program of ours writes. Three columns may hold
-- one infinity, which is a mark there. It is one constraint per table, because PostgreSQL parses each from its text at each
-- execution of a statement.
--
-- No foreign keys between the tables that every order is stored in: checking one would lock the referenced row for each
-- inserted one. An order is written together with all its parts, so references hold by construction.
--
-- Functions with the rights of the owner (SECURITY DEFINER) let a role make one change that its own privileges do not allow.
-- Such a function checks what its caller claims, as far as the database can. The privileges themselves are in libs/pg/roles.

-- 1. The system -------------------------------------------------------------------------------------------------------------

-- What there is one of in a system.
CREATE TABLE system (
    singleton boolean CONSTRAINT system_pkey PRIMARY KEY DEFAULT true CONSTRAINT system_singleton_check CHECK (singleton),
    -- Raised at the commit of each transaction that changes a partner, an option or an endpoint.
    version bigint NOT NULL DEFAULT 0,
    -- The addresses from which webhooks come, as partners were told last; empty as long as they were never set.
    addresses text[] NOT NULL DEFAULT '{}',
    told_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT system_bounds CHECK (
        told_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00' AND pg_column_size(addresses) <= 100000)
);
INSERT INTO system (version) VALUES (0);

-- The version of a row of a partner or an option comes from this sequence. Ingress keeps both in memory and asks for everything
-- that changed after the newest version that it knows, so changes have to become visible in the order of their versions.
CREATE SEQUENCE configuration_versions;
SELECT setval('configuration_versions', 1);

-- The lock, which only changes of partners and options take, is released after the commit is visible. A role that called the
-- function itself would keep every such change waiting until the end of its transaction.
CREATE FUNCTION next_version_of_row() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF pg_trigger_depth() = 0 THEN
        RAISE EXCEPTION 'only a trigger takes the version of a row' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock('options'::regclass::bigint);
    RETURN nextval('configuration_versions');
END
$$;

-- The check in it is one of the caller's privileges, so a table of the caller must not stand in the way of `system`.
CREATE FUNCTION next_configuration_version() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    -- This changes nothing and locks nothing. It fails for a role that may not raise the version: notifiers have a privilege
    -- on partners only to lock their rows.
    UPDATE system SET version = version WHERE false;
    NEW.version := next_version_of_row();
    RETURN NEW;
END
$$;

-- Notifiers keep the endpoints of partners in memory, and a statement that reads fresh deliveries returns nothing if the
-- configuration has another version than the one of which they know them. So whatever decides where a webhook goes, and what
-- signs it, raises that version in the transaction that changes it. The triggers that call this run at the commit, so that the
-- one row of `system` is locked last and shortly.
CREATE FUNCTION configuration_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- Once is enough for a transaction that changes a thousand options. The setting ends with the transaction.
    IF current_setting('esim.version_raised', true) IS DISTINCT FROM 'yes' THEN
        UPDATE system SET version = version + 1;
        PERFORM set_config('esim.version_raised', 'yes', true);
    END IF;
    RETURN NULL;
END
$$;

-- How far each walk has come that goes through rows in the order of time: the sweeps of the stages (`placements` and
-- `deliveries`), and one walk for each class of data that is erased after a term (docs/decisions/0018-retention.md).
CREATE TABLE walks (
    name text PRIMARY KEY,
    -- Sweep: everything created until then is finished or has a row in `work`. Class: everything until then is erased, or is
    -- looked at again.
    up_to timestamptz NOT NULL DEFAULT '-infinity',
    -- Class: the last key that the walk has passed, for walks that remember one.
    after text NOT NULL DEFAULT '',
    -- Class: the term, and when it was set; a new term begins a new walk. Null: for ever.
    days integer CONSTRAINT walks_days CHECK (days BETWEEN 1 AND 36500),
    began_at timestamptz NOT NULL DEFAULT now(),
    -- Sweep: `up_to` may move to `fence_at` once no transaction older than `fence_xid` runs: a slow commit is not missed.
    fence_at timestamptz,
    fence_xid xid8,
    CONSTRAINT walks_bounds CHECK (
        (up_to = '-infinity' OR up_to BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND least(began_at, fence_at) >= '0001-01-01 00:00:00+00' AND greatest(began_at, fence_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(after)) <= 100000)
);
INSERT INTO walks (name, up_to) VALUES ('placements', now()), ('deliveries', now());
-- `attempts` has the events, too. `audit` is what operators did; what partners did themselves ends by `changes`, so that no
-- partner fills the record of operators. `orders`: from this age on finished orders are archived; `archived`: how long after
-- that an archived order is remembered.
INSERT INTO walks (name, days) VALUES
    ('profiles', 90), ('attempts', 30), ('audit', NULL), ('changes', 90), ('refusals', 30), ('orders', NULL), ('archived', 365);

-- 2. Partners, endpoints, options -------------------------------------------------------------------------------------------

CREATE TABLE partners (
    partner_id uuid PRIMARY KEY,
    name text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('sandbox', 'live')),
    -- Keys are encrypted under a master key, bound to their row. The old ones stay valid beside the new ones until their time
    -- has passed; afterwards they mean nothing.
    access_key text NOT NULL CONSTRAINT partners_access_key_key UNIQUE,
    secret_key bytea,
    old_access_key text CONSTRAINT partners_old_access_key_key UNIQUE,
    old_secret_key bytea,
    old_keys_until timestamptz,
    -- Whether every request of this partner must sign its query and its body.
    signed_body_required boolean NOT NULL DEFAULT false,
    -- The partner's own limits; null means the service's default.
    max_in_flight integer,
    requests_per_second integer,
    orders_per_second integer,
    units_per_second integer,
    disabled_at timestamptz,
    -- An erased partner keeps its id, because its orders name it.
    erased_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    -- Whether the partner has further endpoints for webhooks. The claim of a delivery reads the row of its partner anyway, so
    -- a partner with one endpoint costs nothing more.
    has_further_endpoints boolean NOT NULL DEFAULT false,
    CONSTRAINT partners_limits
        CHECK (least(max_in_flight, requests_per_second, orders_per_second, units_per_second) > 0),
    CONSTRAINT partners_bounds CHECK (
        least(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key),
                     octet_length(secret_key), octet_length(old_secret_key)) <= 100000)
);
CREATE INDEX partners_version ON partners (version);
CREATE TRIGGER partners_version BEFORE INSERT OR UPDATE ON partners
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();
CREATE CONSTRAINT TRIGGER partner_changed AFTER INSERT OR UPDATE ON partners DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();

-- Where webhooks and notices go, and how well that works. The first endpoint of a partner, which is the webhook URL of the
-- specification, has `nth` 0 and the id of the partner.
CREATE TABLE partner_endpoints (
    endpoint_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- The order in which a partner's endpoints are shown.
    nth integer NOT NULL,
    -- The lane of its deliveries in `work` and `held`.
    lane text NOT NULL GENERATED ALWAYS AS (CASE WHEN nth = 0 THEN '' ELSE endpoint_id::text END) STORED,
    -- `webhooks`: gets the webhooks that `events` names. `notices`: gets notices, and no webhooks of topups. A partner has at
    -- most one of the latter, whose URL is an https URL, or `mailto:` and an e-mail address.
    purpose text NOT NULL DEFAULT 'webhooks',
    -- Null until the first endpoint is set.
    url text,
    -- Several partners may have their endpoints on one host, whose requests in flight are limited together.
    host text GENERATED ALWAYS AS
        (lower(substring(url FROM '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'))) STORED,
    -- The secrets that sign its webhooks, the newest first, and for each of them when it ends; the newest one has no end. The
    -- secrets and the headers are encrypted under the master key of webhooks, bound to this row. An erased partner has none.
    secrets bytea[] NOT NULL DEFAULT '{}',
    secret_ends timestamptz[] NOT NULL DEFAULT '{}',
    -- `topup.ready`, which is the specified webhook and which the first endpoint always gets, and the names of further events.
    events text[] NOT NULL DEFAULT '{topup.ready}',
    -- Headers that each request carries, as a JSON object; null is none.
    headers bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When its owner proved that it wants to be called, for purposes that ask for that.
    verified_at timestamptz,
    -- The one-time code that was sent last to a channel for notices that is not verified: its digest, until when it is valid,
    -- and how many wrong codes were given since then. The code itself is never stored.
    code_digest bytea,
    code_until timestamptz,
    code_tries integer NOT NULL DEFAULT 0,

    -- Attempts that failed since the last one that succeeded, counted until the endpoint is blocked.
    failures integer NOT NULL DEFAULT 0,
    -- How often it was blocked since then. Each block is longer than the one before.
    blocks integer NOT NULL DEFAULT 0,
    -- Null: deliveries go out. Until this time none does; afterwards one does, as a probe. 'infinity': it is paused.
    blocked_until timestamptz,
    -- The delivery that probes a blocked endpoint.
    probe uuid,
    -- The pause was set by its partner, which may therefore end it, too.
    paused_by_partner boolean NOT NULL DEFAULT false,
    -- The URL changed then, and the deliveries that waited are not all due yet.
    moving_since timestamptz,
    -- When the first of the failures in a row was recorded.
    failing_since timestamptz,
    -- What the partner is told of its health: `failing` or `blocked`; null is healthy. It outlives a block that an operator
    -- ends, until the endpoint acknowledges something and so has recovered. `told_at` is when it became this.
    told text,
    told_at timestamptz,
    -- When the partner was told that the retries of a webhook have ended. Further ones are not told, until the endpoint has
    -- recovered or a day has passed.
    exhausted_told_at timestamptz,
    -- Since when it has a host that has not proved that it wants webhooks; null if it has, or need not. A sandbox account is
    -- free, and one small order of it makes thousands of webhooks, so a host that such an account has chosen itself gets at
    -- most one a second until it returns the code of a test. `blocked_until` is never null then: it is the time of the next
    -- webhook, so that claims need no rule of their own.
    unproven_since timestamptz,

    CONSTRAINT partner_endpoints_first CHECK ((nth = 0) = (endpoint_id = partner_id)),
    CONSTRAINT partner_endpoints_secrets CHECK (cardinality(secrets) = cardinality(secret_ends)),
    CONSTRAINT partner_endpoints_bounds CHECK (
        least(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since)
            >= '0001-01-01 00:00:00+00'
        AND greatest(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since)
            <= '9999-12-31 00:00:00+00'
        AND (blocked_until = 'infinity' OR blocked_until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND '0001-01-01 00:00:00+00' <= ALL (secret_ends) AND '9999-12-31 00:00:00+00' >= ALL (secret_ends)
        AND greatest(octet_length(purpose), octet_length(url), octet_length(headers), octet_length(code_digest),
                     octet_length(told), pg_column_size(events), pg_column_size(secrets), pg_column_size(secret_ends)) <= 100000)
);
CREATE UNIQUE INDEX partner_endpoints_partner ON partner_endpoints (partner_id, nth);
CREATE INDEX partner_endpoints_moving ON partner_endpoints (endpoint_id) WHERE moving_since IS NOT NULL;

-- A partner has its first endpoint from the beginning, whoever creates it.
CREATE FUNCTION first_endpoint() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, created_at)
    VALUES (NEW.partner_id, NEW.partner_id, 0, NEW.created_at)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER partner_created AFTER INSERT ON partners FOR EACH ROW EXECUTE FUNCTION first_endpoint();

-- The URL, the secrets, the headers, the purpose, the begin of a block or pause, and the end of the endpoint decide where a
-- webhook goes. A block that only becomes longer changes nothing, because a blocked endpoint is never used from memory.
CREATE CONSTRAINT TRIGGER endpoint_changed AFTER UPDATE ON partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ((OLD.url, OLD.secrets, OLD.secret_ends, OLD.headers, OLD.purpose, OLD.blocked_until IS NULL)
          IS DISTINCT FROM (NEW.url, NEW.secrets, NEW.secret_ends, NEW.headers, NEW.purpose, NEW.blocked_until IS NULL))
    EXECUTE FUNCTION configuration_changed();
CREATE CONSTRAINT TRIGGER endpoint_deleted AFTER DELETE ON partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();

-- Verifies the partner's channel for notices with a code, given as letters and digits in capitals. `outcome` is `verified`,
-- `before` (it was verified before), `wrong`, `ended` (no code is valid now) or `none` (the partner has no channel);
-- `tries_left` is how many further wrong codes are taken. It is a function of the database, so that the role of ingress alone
-- cannot have notices sent to a stranger: whoever executes it still needs the code.
--
-- The digest is that of `signing::code`: HMAC-SHA256 of a prefix and the id of the channel under the code.
CREATE FUNCTION verify_channel(of_partner uuid, code text, OUT outcome text, OUT tries_left integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    -- How many wrong codes are taken before a new one has to be sent.
    most constant integer := 5;
    channel partner_endpoints;
    key bytea := convert_to(code, 'UTF8');
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    -- The lock keeps two requests at the same time from counting one try.
    SELECT * INTO channel FROM partner_endpoints WHERE partner_id = of_partner AND purpose = 'notices' FOR UPDATE;
    tries_left := 0;
    IF NOT FOUND THEN
        outcome := 'none';
        RETURN;
    END IF;
    IF channel.verified_at IS NOT NULL THEN
        outcome := 'before';
        RETURN;
    END IF;
    IF channel.code_digest IS NULL OR channel.code_tries >= most OR coalesce(channel.code_until <= now(), true) THEN
        outcome := 'ended';
        RETURN;
    END IF;
    -- A longer key would be hashed first. Codes are much shorter, so it is wrong anyway.
    IF length(key) BETWEEN 1 AND 64 THEN
        FOR i IN 0 .. length(key) - 1 LOOP
            inner_pad := set_byte(inner_pad, i, get_byte(inner_pad, i) # get_byte(key, i));
            outer_pad := set_byte(outer_pad, i, get_byte(outer_pad, i) # get_byte(key, i));
        END LOOP;
        IF channel.code_digest = sha256(outer_pad || sha256(inner_pad || convert_to(E'notice code\n', 'UTF8')
                                                                        || uuid_send(channel.endpoint_id))) THEN
            UPDATE partner_endpoints SET verified_at = now(), code_digest = NULL WHERE endpoint_id = channel.endpoint_id;
            outcome := 'verified';
            RETURN;
        END IF;
    END IF;
    UPDATE partner_endpoints SET code_tries = code_tries + 1 WHERE endpoint_id = channel.endpoint_id;
    outcome := 'wrong';
    tries_left := most - channel.code_tries - 1;
END
$$;
REVOKE EXECUTE ON FUNCTION verify_channel(uuid, text) FROM PUBLIC;

-- A code proves the address that it was sent to. So a channel whose address changes is not verified, and the code that was
-- sent to the old one is void, whoever changes it.
CREATE FUNCTION channel_moved() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    NEW.verified_at := NULL;
    NEW.code_digest := NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER channel_moved BEFORE UPDATE OF url ON partner_endpoints
    FOR EACH ROW WHEN (OLD.purpose = 'notices' AND NEW.url IS DISTINCT FROM OLD.url) EXECUTE FUNCTION channel_moved();

-- What partners may order.
CREATE TABLE options (
    option_id uuid PRIMARY KEY,
    name text NOT NULL,
    -- The first provider that is asked, and its name of the product.
    provider text NOT NULL,
    provider_option_id text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('sandbox', 'live')),
    enabled boolean NOT NULL DEFAULT true,
    -- The operator's description for partners, beside the name.
    details jsonb NOT NULL DEFAULT '{}' CONSTRAINT options_details CHECK (jsonb_typeof(details) = 'object'),
    version bigint NOT NULL,
    -- The pairs of provider and provider option that follow the first one, in order of preference:
    -- [{"provider": …, "provider_option_id": …}, …] (docs/decisions/0030-routing.md).
    alternatives jsonb NOT NULL DEFAULT '[]',
    -- What is known of the option in the same form for all providers, so that partners can filter by it
    -- (docs/decisions/0031-catalogue.md). Null: not known. Countries are sorted codes of ISO 3166-1 alpha-2.
    countries text[],
    -- In MB, of which 1024 are a GB. An option has either this or `unlimited`.
    data_mb integer,
    unlimited boolean,
    -- For how many days the product is valid.
    days integer,
    -- What the provider asks of us for one unit, in ten-thousandths of the currency, and the code of the currency. Partners do
    -- not see it.
    cost bigint,
    cost_currency text,
    CONSTRAINT options_bounds CHECK (
        greatest(octet_length(name), octet_length(provider), octet_length(provider_option_id), octet_length(environment),
                 octet_length(cost_currency), pg_column_size(details), pg_column_size(alternatives),
                 pg_column_size(countries)) <= 100000)
);
CREATE INDEX options_version ON options (version);
CREATE TRIGGER options_version BEFORE INSERT OR UPDATE ON options
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();
CREATE CONSTRAINT TRIGGER option_changed AFTER INSERT OR UPDATE ON options DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();

-- 3. Orders -----------------------------------------------------------------------------------------------------------------
-- Single statements write these rows in batches, and only an archive run deletes them. There are no checks of states, because
-- PostgreSQL would parse them at each execution; the enums of `libs/domain` write the states, and the test `machine` holds
-- them together.

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
        UNIQUE NULLS NOT DISTINCT (external_order_id, partner_id, refused_at),
    CONSTRAINT orders_bounds CHECK (
        least(refused_at, answer_by, cancelled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(refused_at, answer_by, cancelled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(external_order_id), octet_length(traceparent)) <= 100000)
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
    -- A code with its detail: `domain::reason`.
    reason text,
    -- What the provider said when it rejected the purchase.
    refusal_status text,
    refusal_message text,
    -- Parked although something of it is bought, so only an operator moves it.
    disputed boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The provider's own id of the purchase, such as its order number; null until the provider has named it, and for
    -- providers that know the purchase by our id only. It has no index: see `provider_references`.
    provider_reference text,
    -- The pairs that the placement may still go to, as the catalogue said when the order was accepted:
    -- [{"provider": …, "lane": …, "options": {our option id: the provider's}}, …]. Null if none is left, and after an outcome
    -- that left a purchase in doubt, because then no other provider may be asked.
    alternatives jsonb,
    -- The pairs that have rejected it: [{"provider": …, "lane": …, "attempt": …, "reason": …, "at": …}, …]. `attempt` is the
    -- last one there. Null if the first provider is the only one so far.
    tried jsonb,
    -- What the first claim needs of the order and its units, as one JSON text, so that it reads no other table. It is written
    -- with the order and removed by the settlement. Null on placements of many units, where the claim reads the order and the
    -- topups. Later attempts always do, because a new provider has other names for the products.
    first_claim text,
    CONSTRAINT placements_bounds CHECK (
        least(attempted_at, not_found_at, placed_at, hinted_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(attempted_at, not_found_at, placed_at, hinted_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(provider), octet_length(lane), octet_length(state), octet_length(reason),
                     octet_length(refusal_status), octet_length(refusal_message), octet_length(provider_reference),
                     pg_column_size(alternatives), pg_column_size(tried), octet_length(first_claim)) <= 100000)
) WITH (fillfactor = 60);
CREATE INDEX placements_order ON placements (order_id);
-- The sweep reads the placements of two seconds, once a second.
CREATE INDEX placements_created ON placements (created_at);

-- The providers' ids of purchases, by which operators search. They have a table of their own, because an index on
-- `placements.provider_reference` would make each settlement write a new version of the row into all indexes. Only providers
-- that name purchases by ids of their own have rows here.
CREATE TABLE provider_references (
    reference text NOT NULL,
    placement_id uuid NOT NULL,
    PRIMARY KEY (reference, placement_id),
    CONSTRAINT provider_references_bounds CHECK (octet_length(reference) <= 100000)
);
-- The function has the owner's rights, so that no stage can change the table in another way.
CREATE FUNCTION note_provider_reference() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.provider_reference IS NOT NULL THEN
        DELETE FROM provider_references
        WHERE reference = OLD.provider_reference AND placement_id = OLD.placement_id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.provider_reference IS NOT NULL THEN
        INSERT INTO provider_references VALUES (NEW.provider_reference, NEW.placement_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
-- The conditions are evaluated without a call, so that the placements of other providers pay nothing.
CREATE TRIGGER placement_inserted AFTER INSERT ON placements FOR EACH ROW
    WHEN (NEW.provider_reference IS NOT NULL) EXECUTE FUNCTION note_provider_reference();
CREATE TRIGGER placement_named AFTER UPDATE OF provider_reference ON placements FOR EACH ROW
    WHEN (NEW.provider_reference IS DISTINCT FROM OLD.provider_reference) EXECUTE FUNCTION note_provider_reference();
CREATE TRIGGER placement_deleted AFTER DELETE ON placements FOR EACH ROW
    WHEN (OLD.provider_reference IS NOT NULL) EXECUTE FUNCTION note_provider_reference();

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
    reason text,
    CONSTRAINT topups_bounds CHECK (
        greatest(octet_length(topup_id), octet_length(provider_option_id), octet_length(state), octet_length(reason)) <= 100000)
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
    erased_at timestamptz,
    -- When the unit was given back to the provider, which is certain. Its profile is erased in the same transaction, because
    -- nobody can install it any more.
    returned_at timestamptz,
    -- A keyed digest of the SM-DP+ address and the activation code; NULL for a code of a provider's test mode.
    code_digest bytea,
    CONSTRAINT esims_bounds CHECK (
        least(ready_at, erased_at, returned_at) >= '0001-01-01 00:00:00+00'
        AND greatest(ready_at, erased_at, returned_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(provider_unit_id), octet_length(iccid),
                     octet_length(profile), octet_length(code_digest)) <= 100000)
) WITH (fillfactor = 70);
-- No unit and no code is ever assigned twice, whatever a provider responds. Codes are unique over all providers, because one
-- that sends a code twice must not give one eSIM to two partners. An ICCID is not unique: eSIM Access sells the line of a
-- cancelled eSIM again, with another code.
CREATE UNIQUE INDEX esims_provider_unit_key ON esims (provider, provider_unit_id);
CREATE INDEX esims_iccid ON esims (iccid) WHERE iccid IS NOT NULL;
CREATE UNIQUE INDEX esims_code_key ON esims (code_digest) WHERE code_digest IS NOT NULL;

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

-- 4. Deliveries -------------------------------------------------------------------------------------------------------------

-- A delivery is the obligation to send one webhook. The kind `topup.ready` is the specified webhook of a ready unit;
-- the other kinds are the events that a partner can ask for, and notices. All kinds share the attempts, the due work and the
-- blocks of endpoints.
--
-- The id of a delivery that must exist at most once is derived from its subject (`topup.failed` from the topup,
-- `key.expiring` from the credential and its end), so that a repeated insert conflicts with the primary key.
CREATE TABLE deliveries (
    delivery_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- The default is what the role of the provisioner creates, which may not name another kind.
    kind text NOT NULL DEFAULT 'topup.ready',
    -- The subject. `topup.ready` and events about a topup: the topup and its order.
    topup_id text COLLATE "C",
    order_id uuid,
    -- `key.expiring`: `keys` or `webhook_secret`, and when the old ones end.
    credential text,
    ends_at timestamptz,
    -- `pending`, `delivered`, `exhausted` or `no_endpoint`.
    state text NOT NULL DEFAULT 'pending',
    -- How many attempts have ended, and how many had ended when the current schedule began (not 0 after a resend).
    attempt integer NOT NULL DEFAULT 0,
    schedule_start integer NOT NULL DEFAULT 0,
    -- The last attempt: when it began, how long it took, the status of its response, and why it failed.
    attempted_at timestamptz,
    duration_ms integer,
    status integer,
    error text,
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The further endpoint that it goes to; null is the first endpoint.
    endpoint_id uuid,
    -- What a notice says beside its kind; null for other deliveries. It never holds anything of an eSIM.
    notice jsonb,
    -- What the webhook of a ready unit says beside its profile, so that a fresh delivery is read without the order and the
    -- topup. Settlements fill them in. They are null on all other deliveries, and the notifier reads the order and the topup
    -- there.
    option_id uuid,
    external_order_id text,
    traceparent text,
    ordered_at timestamptz,
    CONSTRAINT deliveries_bounds CHECK (
        least(ends_at, attempted_at, delivered_at, created_at, ordered_at) >= '0001-01-01 00:00:00+00'
        AND greatest(ends_at, attempted_at, delivered_at, created_at, ordered_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(kind), octet_length(topup_id), octet_length(credential), octet_length(state),
                     octet_length(error), pg_column_size(notice), octet_length(external_order_id),
                     octet_length(traceparent)) <= 100000)
) WITH (fillfactor = 70);
-- The sweep reads the deliveries of two seconds, once a second.
CREATE INDEX deliveries_created ON deliveries (created_at);
-- Operators and partners read a partner's deliveries, or only its events, in the order of time.
CREATE INDEX deliveries_partner ON deliveries (partner_id, created_at);
CREATE INDEX deliveries_events ON deliveries (partner_id, created_at) WHERE kind <> 'topup.ready';

-- The deliveries about a topup to further endpoints, which no index of `deliveries` finds, because each index there costs
-- every delivery a write. The row is committed with its delivery.
CREATE TABLE further_deliveries (
    topup_id text COLLATE "C" NOT NULL,
    delivery_id uuid NOT NULL,
    PRIMARY KEY (topup_id, delivery_id),
    CONSTRAINT further_deliveries_bounds CHECK (octet_length(topup_id) <= 100000)
);

-- A link from a topup leads to a webhook about this topup at a further endpoint of the same partner. It is looked at when its
-- transaction commits, because the webhook is inserted by the same statement.
CREATE FUNCTION further_delivery_of_its_topup() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    -- Both may be gone by then, and the partner may have deleted the endpoint: then the webhook goes to nobody.
    IF EXISTS (
        SELECT FROM further_deliveries f
        LEFT JOIN deliveries d ON d.delivery_id = f.delivery_id
        WHERE f.topup_id = NEW.topup_id AND f.delivery_id = NEW.delivery_id
          AND (d.topup_id = f.topup_id AND d.endpoint_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM partner_endpoints e
                               WHERE e.endpoint_id = d.endpoint_id AND e.partner_id <> d.partner_id)
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

-- Ended attempts. The last attempt of a delivered `topup.ready` is on the delivery's own row instead, so a delivery
-- that arrives at the first attempt costs nothing here.
CREATE TABLE delivery_attempts (
    delivery_id uuid NOT NULL,
    -- How many attempts had ended before this one.
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    duration_ms integer NOT NULL,
    -- Of the response, if there was one.
    status integer,
    -- The result in one word: `delivered`, `status_5xx`, `timeout`, …
    class text NOT NULL,
    -- The beginning of a response that did not acknowledge, encrypted: endpoints echo what they got.
    response_start bytea,
    -- What was wrong with an attempt that got no readable response, beside its class: for example that the certificate of the
    -- endpoint has expired. The text is ours and bounded; nothing decides by it.
    detail text,
    -- A notifier that stalled may make an attempt that another one has made meanwhile: then there are two.
    PRIMARY KEY (delivery_id, attempt, at),
    CONSTRAINT delivery_attempts_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(class), octet_length(response_start), octet_length(detail)) <= 100000)
);
-- Retention reads attempts in the order of time.
CREATE INDEX delivery_attempts_at ON delivery_attempts (at);

-- Whether the request that created an order may still answer with 422. Until that is certain, nobody is told that a unit of
-- the order has failed: the partner would refund its customer, and be told a moment later that nothing was ordered.
CREATE FUNCTION may_be_refused(of_order uuid) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM orders o
    WHERE o.order_id = of_order AND o.answering IS NOT NULL AND o.refused_at IS NULL AND o.answer_by > now()
      AND NOT EXISTS (SELECT FROM placements p WHERE p.order_id = o.order_id AND p.state IN ('placed', 'parked'))
);

-- The units of partners with their owner, their state as partners see it, and what became of a webhook of their own. The view has the rights
-- of the role that reads it. The state is derived by `domain::standing` from `has_failed`, `is_parked` and the times, so that
-- look-ups, sentences and pages cannot differ.
CREATE VIEW partner_units WITH (security_invoker = true) AS
SELECT o.partner_id,
    o.order_id,
    o.external_order_id,
    t.topup_id,
    t.position,
    t.option_id,
    CASE
        WHEN e.ready_at IS NOT NULL THEN 'ready'
        WHEN t.state = 'failed' THEN 'failed'
        WHEN p.state = 'parked' THEN 'on_hold'
        ELSE 'processing'
    END AS state,
    p.refusal_status,
    p.refusal_message,
    e.iccid,
    e.profile,
    e.ready_at,
    e.erased_at,
    e.delivery_id,
    d.state AS delivery,
    d.attempt,
    d.attempted_at,
    d.delivered_at,
    d.created_at AS delivery_created_at,
    e.returned_at,
    t.state = 'failed' AND NOT may_be_refused(o.order_id) AS has_failed,
    p.state = 'parked' AS is_parked
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id AND d.partner_id = o.partner_id;

-- What several statements derive or decide alike stands here once. The planner takes these expressions into the statements.

-- The id of what follows from something else, so that whoever makes it twice makes one.
CREATE FUNCTION derived_id(kind text, source text) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT md5(kind || ' ' || source)::uuid $$;

-- The events about a topup that its first endpoint may get. Whatever erases, archives or tells of a topup finds them here.
-- Those of further endpoints are in further_deliveries.
CREATE FUNCTION events_of_topup(topup_id text) RETURNS uuid[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[derived_id('topup.failed', topup_id)] $$;

-- The work that is about a topup and no delivery or placement.
CREATE FUNCTION work_of_topup(topup_id text) RETURNS uuid[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[derived_id('erase', topup_id), derived_id('usage', topup_id), derived_id('give_back', topup_id)] $$;

-- Whether an event need not be sent any more: its endpoint no longer wants it, its order was refused, or its topup has not failed
-- after all. So is an event about a topup that is not one of the order that it names, which must be an order of its partner:
-- nobody is told of somebody else's topup, whatever kind of event names it and whoever has created it.
CREATE FUNCTION is_pointless(
    kind text, events text[], topup_id text, is_of_its_order boolean, refused_at timestamptz, topup_state text,
    ready_at timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT kind <> 'topup.ready' AND (
        kind NOT LIKE 'notice.%' AND kind <> ALL (events)
        OR topup_id IS NOT NULL AND (is_of_its_order AND refused_at IS NULL) IS NOT TRUE
        OR kind = 'topup.failed' AND (topup_state = 'failed' AND ready_at IS NULL) IS NOT TRUE)
$$;

-- Whether an event tells of an order that was or may still be answered with 422. Then the partner must not see it. The times are
-- those of the order that the event names, if it names one.
CREATE FUNCTION is_unconfirmed(kind text, refused_at timestamptz, answer_by timestamptz)
RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT kind <> 'topup.ready' AND (refused_at IS NOT NULL OR coalesce(answer_by > now(), false)) $$;

-- The deliveries that an order can have: those of its units to the first endpoint (of the eSIM, and the events about it), and
-- those to further endpoints.
CREATE VIEW order_deliveries WITH (security_invoker = true) AS
    SELECT p.order_id, t.topup_id, named.delivery_id
    FROM placements p
    JOIN topups t ON t.placement_id = p.placement_id
    LEFT JOIN esims e ON e.topup_id = t.topup_id
    CROSS JOIN LATERAL unnest(
        e.delivery_id || events_of_topup(t.topup_id)
        || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id)) AS named (delivery_id)
    WHERE named.delivery_id IS NOT NULL;

-- 5. Work -------------------------------------------------------------------------------------------------------------------

-- A row says that something needs its stage at `at`: now, or later for a retry, a poll or a look-up. The claim of a row moves
-- `at` to the end of its lease, so that other processes leave the row alone for that long; a lease saves work and guarantees
-- nothing. A placement or a delivery that is finished within its first lease usually has no row here, so the fast path writes
-- nothing.
CREATE TABLE work (
    -- The placement, delivery, endpoint or resend; or derived from the kind and the topup.
    id uuid PRIMARY KEY,
    -- Of the provisioner: `buy`, a purchase that was never tried; `buy_again`, a further attempt, which comes before first
    -- ones; `find`, look up an attempt whose outcome is unknown; `collect`, ask for missing profiles; `usage` and `give_back`,
    -- what a partner asks about a delivered eSIM. Of the notifier: `deliver`, send a webhook; `erase`, look again at a profile
    -- whose term has ended; and what is done in batches, each in a lane of its own that is called like the kind: `moved`, make
    -- the waiting deliveries of an endpoint due; `resend`; and `notices`.
    kind text NOT NULL,
    -- Empty for the notifier's work.
    provider text NOT NULL,
    -- What fails together: the placement's lane, or the endpoint's. The topup for `erase`, `usage` and `give_back`.
    lane text NOT NULL,
    partner_id uuid NOT NULL,
    -- '-infinity' marks a test, which may be sent during a block.
    at timestamptz NOT NULL,
    CONSTRAINT work_bounds CHECK (
        (at = '-infinity' OR at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND greatest(octet_length(kind), octet_length(provider), octet_length(lane)) <= 100000)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
-- A look at due work goes from lane to lane and partner to partner, so that no backlog hides another one.
CREATE INDEX work_lane ON work (kind, provider, lane, partner_id, at);
-- The number of due rows, and how long the oldest has been due.
CREATE INDEX work_at ON work (kind, provider, at);

-- What is to be done next for a placement follows from its state and its attempts, and is said once. The names are those of
-- `store::work::Kind`. A function of one expression is part of the statement that calls it, so it costs no call.
CREATE FUNCTION kind_of_work(state text, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE state
    WHEN 'accepted' THEN CASE WHEN attempt = 0 THEN 'buy' ELSE 'buy_again' END
    WHEN 'placing' THEN 'look_up'
    ELSE 'collect'
END;

-- Makes the commit of its transaction return before the log is on disk, if that is wanted. A statement that joins it is its
-- own transaction, so it needs no further round trip for the setting. It returns one row in any case.
CREATE FUNCTION commit_without_flush(wanted boolean) RETURNS text LANGUAGE sql
RETURN CASE WHEN wanted THEN set_config('synchronous_commit', 'off', true) END;

-- Placements and deliveries that nothing is done for until somebody acts: parked placements, deliveries whose retries
-- ended (`exhausted`), and deliveries of a partner without a webhook URL (`no_endpoint`).
CREATE TABLE held (
    id uuid PRIMARY KEY,
    -- `parked`, `exhausted` or `no_endpoint`.
    state text NOT NULL,
    -- Empty for a delivery.
    provider text NOT NULL,
    partner_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    -- The endpoint of a held delivery, as in `work.lane`: empty for the first one, and otherwise the endpoint's id as text.
    lane text NOT NULL DEFAULT '',
    CONSTRAINT held_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(state), octet_length(provider), octet_length(lane)) <= 100000)
);
CREATE INDEX held_state ON held (state, provider, at);
CREATE INDEX held_partner ON held (partner_id, state, at);

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

-- Sends a ready unit to a further endpoint of its partner that did not exist when the unit became ready, as its partner asks.
-- Returns the id of the delivery, which is derived as the fan-out derives it, so that there is never a second one.
CREATE FUNCTION deliver_to(of_partner uuid, of_topup text, to_endpoint uuid) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
WITH created AS (
    INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
    SELECT derived_id('topup.ready', t.topup_id || ' ' || n.endpoint_id::text), o.partner_id, 'topup.ready', t.topup_id,
           o.order_id, n.endpoint_id
    FROM topups t
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    JOIN esims e ON e.topup_id = t.topup_id
    JOIN partner_endpoints n ON n.partner_id = o.partner_id
    WHERE t.topup_id = of_topup AND o.partner_id = of_partner AND e.ready_at IS NOT NULL AND e.erased_at IS NULL
      AND n.endpoint_id = to_endpoint AND n.nth > 0 AND n.purpose = 'webhooks'
    ON CONFLICT DO NOTHING
    RETURNING delivery_id, partner_id, topup_id, endpoint_id
), linked AS (
    INSERT INTO further_deliveries (topup_id, delivery_id)
    SELECT topup_id, delivery_id FROM created
    ON CONFLICT DO NOTHING
), due AS (
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created
    ON CONFLICT DO NOTHING
)
SELECT delivery_id FROM created
$$;
REVOKE EXECUTE ON FUNCTION deliver_to(uuid, text, uuid) FROM PUBLIC;

-- Creates the events of a kind about a topup, one for each endpoint of its partner that wants them. They are due when the order
-- can no longer be answered with 422. The id of an event is derived from the topup and, unless it goes to the first endpoint,
-- from the endpoint, so that it exists only once. All events about topups are made here, by triggers in the transaction of their
-- cause, so that no role names the partner or the order of an event: both are those of the topup.
CREATE FUNCTION make_events(of_kind text, of_topup text) RETURNS void
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    -- Otherwise an erasure would not find it.
    IF derived_id(of_kind, of_topup) <> ALL (events_of_topup(of_topup)) THEN
        RAISE EXCEPTION 'the function events_of_topup does not name the kind %', of_kind
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH wanted AS (
        SELECT o.order_id, o.partner_id, o.answer_by, nullif(e.endpoint_id, o.partner_id) AS endpoint_id, e.lane
        FROM topups t
        JOIN placements p ON p.placement_id = t.placement_id
        JOIN orders o ON o.order_id = p.order_id
        JOIN partner_endpoints e ON e.partner_id = o.partner_id
        WHERE t.topup_id = of_topup AND o.refused_at IS NULL AND of_kind = ANY (e.events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
        SELECT derived_id(of_kind, of_topup || coalesce(' ' || endpoint_id::text, '')), partner_id, of_kind, of_topup, order_id,
               endpoint_id
        FROM wanted
        ON CONFLICT DO NOTHING
        RETURNING delivery_id, endpoint_id
    ), linked AS (
        INSERT INTO further_deliveries (topup_id, delivery_id)
        SELECT of_topup, delivery_id FROM created WHERE endpoint_id IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', lane, partner_id, greatest(answer_by, now())
    FROM created JOIN wanted ON wanted.endpoint_id IS NOT DISTINCT FROM created.endpoint_id;
END
$$;
REVOKE EXECUTE ON FUNCTION make_events(text, text) FROM PUBLIC;

-- Whatever fails a topup creates the events about it. The function has the owner's rights, because the provisioner reads nothing
-- of partners.
CREATE FUNCTION topup_failed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM make_events('topup.failed', NEW.topup_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_failed AFTER UPDATE OF state ON topups
    FOR EACH ROW WHEN (NEW.state = 'failed' AND OLD.state <> 'failed') EXECUTE FUNCTION topup_failed();

-- An endpoint whose URL is new, or whose pause has ended: its waiting deliveries become due. The id is that of the endpoint.
-- The function has the rights of the owner, because those who change an endpoint may not insert such work. Work that is there
-- becomes due anew: whoever finishes an earlier move sees by `at` that this one came.
CREATE FUNCTION endpoint_moved() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.endpoint_id, 'moved', '', 'moved', NEW.partner_id, now())
    ON CONFLICT (id) DO UPDATE SET at = excluded.at;
    RETURN NULL;
END
$$;
CREATE TRIGGER endpoint_moved AFTER INSERT OR UPDATE OF moving_since ON partner_endpoints
    FOR EACH ROW WHEN (NEW.moving_since IS NOT NULL) EXECUTE FUNCTION endpoint_moved();

-- 6. Providers --------------------------------------------------------------------------------------------------------------

-- The breaker of each provider, for every replica and for operators. Provisioners insert the row when they start.
-- While the breaker is not closed, nothing of the provider is claimed except one probe at a time.
CREATE TABLE providers (
    name text PRIMARY KEY,
    -- Null: closed. Otherwise one placement may probe the provider after this time.
    open_until timestamptz,
    -- Why it opened, or what failed last.
    reason text,
    -- How often failed calls have opened it since the last response. Each time it stays open for longer.
    openings integer NOT NULL DEFAULT 0,
    -- Grows whenever the breaker opens, closes or lets a probe through. A call that began at another version says
    -- nothing about this one.
    version bigint NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT now(),
    -- Since when the breaker has not been closed. `changed_at` begins anew with each probe, so it says nothing of how long the
    -- provider has failed.
    failing_since timestamptz,
    -- Whether the provider has denied our account, which does not end by itself, and what it has told of our balance.
    denied boolean NOT NULL DEFAULT false,
    balance text,
    balance_at timestamptz,
    -- What the provider does for delivered eSIMs, as its adapter says. Null: no provisioner has said it yet.
    shows_usage boolean,
    takes_back boolean,
    CONSTRAINT providers_bounds CHECK (
        least(open_until, changed_at, failing_since, balance_at) >= '0001-01-01 00:00:00+00'
        AND greatest(open_until, changed_at, failing_since, balance_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(reason), octet_length(balance)) <= 100000
        AND openings BETWEEN 0 AND 1000000000
        AND version BETWEEN 0 AND 9000000000000000000)
);

-- Lanes whose purchases a provisioner holds back, and why, for operators. Each process writes its own rows, at most
-- once a second, and only of lanes that fail.
CREATE TABLE provider_lanes (
    provider text NOT NULL,
    lane text NOT NULL,
    instance text NOT NULL,
    -- How many purchases of the lane may be in flight in this process.
    max_in_flight integer NOT NULL,
    -- Attempts of the lane that were sent and whose outcome is unknown, in all processes.
    unsettled integer NOT NULL,
    -- The last failure.
    reason text NOT NULL,
    since timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, lane, instance),
    CONSTRAINT provider_lanes_bounds CHECK (
        least(since, updated_at) >= '0001-01-01 00:00:00+00'
        AND greatest(since, updated_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(provider), octet_length(lane), octet_length(instance), octet_length(reason)) <= 100000)
);

-- What `esimctl provider prove` bought to try an account, each purchase recorded before it is sent, and what that proved.
CREATE TABLE provider_proofs (
    -- Our id of the purchase at the provider.
    purchase_id uuid PRIMARY KEY,
    provider text NOT NULL,
    -- The account: a digest of its address and access key, which are not stored.
    account text NOT NULL,
    provider_option_id text NOT NULL,
    -- Of its first request.
    units integer NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- The provider's ids of the purchase if it was sold; more than one if it was sold more than once, ours if it has none.
    reference text,
    -- When nothing of it was left to give back.
    ended_at timestamptz,
    -- Whether an identical request was the same purchase, how old the purchase was then, and when that was seen. Null: not
    -- asked, or without an answer.
    same_again boolean,
    same_for_s integer,
    proved_at timestamptz,
    -- What was asked, what came and what follows, as JSON without secrets and activation codes.
    evidence text,
    CONSTRAINT provider_proofs_bounds CHECK (
        least(recorded_at, ended_at, proved_at) >= '0001-01-01 00:00:00+00'
        AND greatest(recorded_at, ended_at, proved_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(provider), octet_length(account), octet_length(provider_option_id),
                     octet_length(reference), octet_length(evidence)) <= 100000
        AND units BETWEEN 1 AND 1000
        AND same_for_s BETWEEN 0 AND 1000000000)
);

-- The replicas that call a provider with a rate limit, each with the part of it that it holds until then.
CREATE TABLE provider_replicas (
    provider text NOT NULL,
    instance text NOT NULL,
    -- Calls per second.
    share double precision NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (provider, instance),
    CONSTRAINT provider_replicas_bounds CHECK (
        until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(provider), octet_length(instance)) <= 100000
        AND share BETWEEN 0 AND 1e9)
);

-- 7. What did not go straight, figures, refused requests --------------------------------------------------------------------

-- Rows of the other tables say how things are now; an attempt that failed before the last one, or what an operator found before
-- a resolution, is overwritten there and stands here. Append-only for every role. A row is written by the transaction that
-- changes what it is about. An order that goes straight has none.
CREATE TABLE history (
    history_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT now(),
    -- What it is about: an order with its placement and perhaps one of its units, or else the breaker of a provider, or an
    -- endpoint.
    order_id uuid,
    placement_id uuid,
    topup_id text COLLATE "C",
    -- Of a placement, the provider that was asked.
    provider text,
    endpoint_id uuid,
    -- A name of `domain::HistoryKind`.
    kind text NOT NULL,
    attempt integer,
    -- Why, as a code with its detail: `domain::reason`.
    reason text,
    -- What the provider responded, or what an operator wrote. It is shown, and nothing decides by it.
    detail text,
    -- What an operator or a new provider changed.
    before jsonb,
    after jsonb,
    CONSTRAINT history_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(kind), octet_length(reason),
                     octet_length(detail), pg_column_size(before), pg_column_size(after)) <= 100000)
);
CREATE INDEX history_order ON history (order_id, at) WHERE order_id IS NOT NULL;
-- The page of an order shows what its endpoints and providers suffered while it waited for them.
CREATE INDEX history_endpoint ON history (endpoint_id, at) WHERE endpoint_id IS NOT NULL;
CREATE INDEX history_provider ON history (provider, at) WHERE order_id IS NULL AND provider IS NOT NULL;
-- Retention ends what is about no order.
CREATE INDEX history_at ON history (at) WHERE order_id IS NULL;

-- A block of an endpoint and its end are remembered, whichever statement sets them: a failed attempt, an acknowledgement,
-- a new URL, or an operator.
CREATE FUNCTION endpoint_blocked() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
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

-- Figures by the time of the event. Each process adds to rows of its own once in ten seconds, so nobody waits for anybody, and
-- no order pays for it.
CREATE TABLE minutely (
    -- `minute` or `hour`: each write adds to both.
    span text NOT NULL,
    -- The beginning of the minute or hour in which the events happened.
    at timestamptz NOT NULL,
    -- A name of `store::figures::Measure`.
    measure text NOT NULL,
    -- A provider's name or an endpoint's id; empty for the others, and for what a process had no room for.
    subject text NOT NULL,
    -- The process.
    instance uuid NOT NULL,
    n bigint NOT NULL,
    failed bigint NOT NULL,
    -- How many events took how long, by `store::figures::BOUNDS`.
    histogram bigint[] NOT NULL,
    PRIMARY KEY (span, at, measure, subject, instance),
    CONSTRAINT minutely_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(span), octet_length(measure), octet_length(subject), pg_column_size(histogram)) <= 100000
        -- What our programs can read.
        AND array_ndims(histogram) = 1 AND array_position(histogram, NULL) IS NULL)
);

-- Requests that ingress answered with a 4xx or 503 and whose access key belongs to a partner: the newest ones of each partner
-- and kind, and no longer than the term `refusals` of retention. They hold no header and no body. By them operators can tell a
-- request that never came from one that was refused.
CREATE TABLE refused_requests (
    -- The X-Request-Id of the response. It is a UUIDv7, so ids are in the order of time.
    request_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    -- `order` is a create-order request and `other` is any other one, both with a valid signature. The signature of an
    -- `unsigned` one was not valid, so anybody who knows the partner's access key may have sent it. Each kind has a room of
    -- its own, so that forged requests push out no genuine ones.
    kind text NOT NULL,
    at timestamptz NOT NULL,
    status integer NOT NULL,
    -- The code of the first error, or the name of the limit that was reached.
    reason text NOT NULL,
    -- The codes of the errors, as the response named them in its header.
    errors text NOT NULL,
    method text NOT NULL,
    -- The path without the query, and at most its first 300 characters.
    path text NOT NULL,
    -- Of a create-order request whose body could be read.
    external_order_id text,
    -- How many requests of this partner and kind, since the one that was stored before, were not stored because there were
    -- too many.
    unrecorded bigint NOT NULL,
    CONSTRAINT refused_requests_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(kind), octet_length(reason), octet_length(errors), octet_length(method), octet_length(path),
                     octet_length(external_order_id)) <= 100000)
);
CREATE INDEX refused_requests_partner ON refused_requests (partner_id, kind, request_id);
CREATE INDEX refused_requests_at ON refused_requests (at);
CREATE INDEX refused_requests_external ON refused_requests (external_order_id) WHERE external_order_id IS NOT NULL;

-- 8. Resends ----------------------------------------------------------------------------------------------------------------

-- What a partner calls a redelivery, an operator's resend of one webhook, and that of the webhooks of many partners. The
-- notifiers work it off in batches; each batch commits together with how far it has come.
CREATE TABLE resends (
    resend_id uuid CONSTRAINT resends_pkey PRIMARY KEY,
    -- Null: it is of several partners, and each of them has a row that names it as its batch. It is stored as ended, because
    -- its parts are what is worked off.
    partner_id uuid,
    -- Which webhooks: those in this state, or all that are not delivered if it is null, whose last attempt (before the
    -- first one: their creation) was in this range of time, the end excluded.
    state text,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    -- How many matched when it began; null: more than are counted.
    matching bigint,
    -- The webhooks that are walked through now: `exhausted`, `pending` or `delivered`. Then `sending`: all are due, and
    -- some of them wait for their attempt.
    phase text NOT NULL,
    -- The last webhook that was walked past. Null: none. While `sending`, the time at which the walk ended.
    after_at timestamptz,
    after_id uuid,
    -- How many have been made due.
    resent bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Null: it runs.
    ended_at timestamptz,
    -- Somebody ended it early.
    cancelled_at timestamptz,
    batch_id uuid,
    -- The one webhook that it is about. Such a row has ended, because the webhook is due when the row is stored.
    delivery_id uuid,
    -- Who asked: the operator's name, or `partner`; through `esimctl`, `console` or `api`; and why.
    asked_by text NOT NULL DEFAULT 'partner',
    via text NOT NULL DEFAULT 'api',
    reason text NOT NULL DEFAULT '',
    -- Partners that had a running resend already, and so are no part of it.
    skipped bigint NOT NULL DEFAULT 0,
    CONSTRAINT resends_bounds CHECK (
        least(since, until, after_at, created_at, ended_at, cancelled_at) >= '0001-01-01 00:00:00+00'
        AND greatest(since, until, after_at, created_at, ended_at, cancelled_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(state), octet_length(phase), octet_length(asked_by), octet_length(via),
                     octet_length(reason)) <= 100000)
);
-- A partner has one running resend at most, and the notifiers find the running ones.
CREATE UNIQUE INDEX resends_running ON resends (partner_id) WHERE ended_at IS NULL;
CREATE INDEX resends_partner ON resends (partner_id, created_at);
-- The parts of a resend of several partners.
CREATE INDEX resends_batch ON resends (batch_id) WHERE batch_id IS NOT NULL;
-- The list of resends, without the single webhooks that partners have asked for.
CREATE INDEX resends_created ON resends (created_at) WHERE batch_id IS NULL AND (delivery_id IS NULL OR via <> 'api');

-- A resend that runs is work under its own id. The function has the rights of the owner, because those who ask for one may not
-- insert such work.
CREATE FUNCTION resend_begun() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.resend_id, 'resend', '', 'resend', NEW.partner_id, now())
    ON CONFLICT (id) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER resend_begun AFTER INSERT ON resends
    FOR EACH ROW WHEN (NEW.ended_at IS NULL AND NEW.partner_id IS NOT NULL) EXECUTE FUNCTION resend_begun();

-- 9. What partners ask about a delivered eSIM -------------------------------------------------------------------------------

-- Its data use, and to give it back (docs/decisions/0032-after-delivery.md). One row for each unit that a partner has ever
-- asked about, or its provider reported of; all other units have none, so orders pay nothing. Ingress writes the question, the
-- provisioner asks the provider and writes the answer. When it is due stands in `work`.
CREATE TABLE esim_requests (
    topup_id text COLLATE "C" PRIMARY KEY,
    partner_id uuid NOT NULL,
    provider text NOT NULL,

    -- The question about the data use: when it was asked, and null once it has an answer.
    usage_asked_at timestamptz,
    -- The last answer of the provider, and when it came. Each part is null if the provider does not say it. The data is in
    -- bytes; its total is null for an eSIM without a limit, too.
    installed boolean,
    data_used bigint,
    data_total bigint,
    ends_at timestamptz,
    read_at timestamptz,
    -- When the provider counted the data, if it says so. It counts with a delay of hours.
    as_of timestamptz,
    -- Why the last question has no answer: `not_available`, because the provider shows no use, or `failed`. Null if it has one.
    usage_failure text,
    usage_failed_at timestamptz,

    -- The give-back: `asked`, `sending`, `returned`, `refused` or `parked`; null if it was never asked for. The transitions are
    -- `domain::give_back`.
    give_back text,
    give_back_asked_at timestamptz,
    -- The last attempt. It is recorded before the provider is called.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    -- When a look after that attempt first found that the eSIM is not given back.
    not_returned_at timestamptz,
    -- Why it was refused or parked: a code, and what the provider said.
    reason text,
    message text,
    ended_at timestamptz,
    CONSTRAINT esim_requests_bounds CHECK (
        least(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, give_back_asked_at, attempted_at, not_returned_at,
              ended_at) >= '0001-01-01 00:00:00+00'
        AND greatest(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, give_back_asked_at, attempted_at,
                     not_returned_at, ended_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back),
                     octet_length(reason), octet_length(message)) <= 100000)
);
-- The give-backs that wait for an operator.
CREATE INDEX esim_requests_parked ON esim_requests (provider, ended_at) WHERE give_back = 'parked';

-- Marks a unit as given back, for every role that ends a give-back, and erases its profile with the mark. The console may
-- resolve give-backs, and must not be able to change any other profile. So the function erases only the profile of a unit whose
-- give-back has ended as returned, which the same transaction records.
CREATE FUNCTION mark_returned(returned_topup text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE esims SET profile = NULL, erased_at = coalesce(erased_at, now()), returned_at = now()
    WHERE topup_id = returned_topup AND returned_at IS NULL
      AND (SELECT r.give_back = 'returned' FROM esim_requests r WHERE r.topup_id = returned_topup);
    RETURN FOUND;
END
$$;
REVOKE EXECUTE ON FUNCTION mark_returned(text) FROM PUBLIC;

-- Ends a parked give-back as an operator has found it at the provider, and erases the profile of an eSIM that the provider has
-- back. Whoever resolves give-backs needs no right to change their rows, so it cannot make one that nobody has asked for, nor
-- erase the profile of an eSIM of another one. Returns false if the give-back is not parked after this attempt.
CREATE FUNCTION resolve_give_back(resolved_topup text, after_attempt integer, is_returned boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE esim_requests
    SET give_back = CASE WHEN is_returned THEN 'returned' ELSE 'refused' END, ended_at = now(), reason = 'resolved',
        message = NULL, not_returned_at = NULL
    WHERE topup_id = resolved_topup AND give_back = 'parked' AND attempt = after_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mark_returned(resolved_topup);
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION resolve_give_back(text, integer, boolean) FROM PUBLIC;

-- Keeps what a provider reported of a delivered eSIM, which it names by its own id or by the ICCID, or of our account if it
-- names none. Nothing of a report is believed: it makes the question about the use of the eSIM due, whose answer is. A report
-- that comes again changes nothing. An eSIM of which something was read a moment ago is asked for when that is five minutes
-- old, as for its partner, so reports cost the provider one call in that time, however many they are.
-- Returns false if the report was kept before, and null if no eSIM of ours is delivered by that name. The provisioner may call
-- it and needs no right to write a question or to lock an order. The lock keeps the order out of archives and erasures, as for
-- a question of a partner; an eSIM that was sold under the ICCID of an earlier one is the later one.
CREATE FUNCTION report_of_esim(of_provider text, of_unit text, of_iccid text, report text, words text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    about record;
BEGIN
    SELECT e.topup_id, p.placement_id, p.order_id, p.partner_id INTO about
    FROM esims e
    JOIN topups t ON t.topup_id = e.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE e.topup_id = coalesce(
            (SELECT u.topup_id FROM esims u WHERE u.provider = of_provider AND u.provider_unit_id = of_unit),
            (SELECT i.topup_id FROM esims i WHERE i.iccid = of_iccid AND i.provider = of_provider ORDER BY i.topup_id DESC LIMIT 1))
      AND e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
    FOR KEY SHARE OF o;
    IF NOT FOUND AND coalesce(of_unit, of_iccid) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO history (history_id, order_id, placement_id, topup_id, provider, kind, detail)
    VALUES (derived_id('reported', of_provider || ' ' || report), about.order_id, about.placement_id, about.topup_id,
            of_provider, 'reported', left(words, 200))
    ON CONFLICT DO NOTHING;
    IF NOT FOUND OR about.topup_id IS NULL THEN
        RETURN FOUND;
    END IF;
    INSERT INTO esim_requests AS r (topup_id, partner_id, provider, usage_asked_at)
    VALUES (about.topup_id, about.partner_id, of_provider, now())
    ON CONFLICT (topup_id) DO UPDATE SET usage_asked_at = now(), usage_failure = NULL, usage_failed_at = NULL
    WHERE r.usage_asked_at IS NULL;
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('usage', r.topup_id), 'usage', r.provider, r.topup_id, r.partner_id,
           greatest(now(), r.read_at + interval '5 minutes')
    FROM esim_requests r WHERE r.topup_id = about.topup_id
    ON CONFLICT DO NOTHING;
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION report_of_esim(text, text, text, text, text) FROM PUBLIC;

-- 10. Operators -------------------------------------------------------------------------------------------------------------

-- What operators, and partners themselves, changed. Each row commits with its change.
CREATE TABLE operator_actions (
    action_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    -- The operator's name, or `partner`.
    operator text NOT NULL,
    database_role text NOT NULL DEFAULT session_user,
    -- A name of `domain::Command`.
    command text NOT NULL,
    -- The placement, delivery or partner that the command named, with its filters.
    target text NOT NULL,
    -- The number of changed rows.
    affected bigint NOT NULL,
    reason text NOT NULL,
    -- Through which program: `esimctl`, `console` or `api`, from which address, and what it changed, without secrets. Null if
    -- there is nothing to say.
    via text,
    source text,
    before jsonb,
    after jsonb,
    CONSTRAINT operator_actions_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(operator), octet_length(database_role), octet_length(command), octet_length(target),
                     octet_length(reason), octet_length(via), octet_length(source), pg_column_size(before),
                     pg_column_size(after)) <= 100000)
);
CREATE INDEX operator_actions_at ON operator_actions (at);
-- The timeline of an order reads the actions on it and on its parts by their ids, the second word of `target`, however many
-- others were recorded since the order. An entry of an index has a bounded length, and a target that names a file may be
-- longer, so only its first 100 characters count; ids are shorter.
CREATE INDEX operator_actions_target ON operator_actions (left(split_part(target, ' ', 2), 100));
-- The record of operators is read without passing the changes that partners made themselves, however many these are, and
-- retention finds the latter.
CREATE INDEX operator_actions_apart ON operator_actions ((operator = 'partner'), at);

-- Who signs in at the console (docs/decisions/0034-operations.md).
CREATE TABLE operators (
    operator_id uuid PRIMARY KEY,
    -- What the operator types to sign in, and what recorded actions name.
    name text NOT NULL CONSTRAINT operators_name_key UNIQUE,
    -- `viewer`, `support` or `operator`.
    role text NOT NULL,
    -- The Argon2id hash of the password; null until the operator has set one by the link.
    password text,
    -- The one-time link that sets the password: the SHA-256 digest of its token, and its end.
    setup_digest bytea,
    setup_until timestamptz,
    disabled_at timestamptz,
    signed_in_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT operators_bounds CHECK (
        least(setup_until, disabled_at, signed_in_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(setup_until, disabled_at, signed_in_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(role), octet_length(password), octet_length(setup_digest)) <= 100000)
);

-- A signed-in browser. The token is in its cookie only, so that whoever reads this table cannot sign in.
CREATE TABLE operator_sessions (
    token_digest bytea PRIMARY KEY,
    operator_id uuid NOT NULL,
    -- The address from which it was opened.
    source text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Written at most once a minute.
    used_at timestamptz NOT NULL DEFAULT now(),
    ends_at timestamptz NOT NULL,
    -- Of a session of somebody who has no account here, because an OpenID provider says who they are
    -- (docs/decisions/0033-console.md): the issuer that has said it, what recorded actions name, such as
    -- `oidc:ana@example.com`, and `viewer`, `support` or `operator`, as its claim said when the session began. All three are
    -- null for a session of an account in `operators`.
    issuer text,
    name text,
    role text,
    CONSTRAINT operator_sessions_bounds CHECK (
        least(created_at, used_at, ends_at) >= '0001-01-01 00:00:00+00'
        AND greatest(created_at, used_at, ends_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(source), octet_length(issuer), octet_length(name), octet_length(role),
                     octet_length(token_digest)) <= 100000)
);
CREATE INDEX operator_sessions_operator ON operator_sessions (operator_id);

-- Attempts to sign in that have not succeeded, counted for each name and each address; bounded by the program.
CREATE TABLE operator_sign_ins (
    -- `name …` or `source …`.
    subject text PRIMARY KEY,
    attempts integer NOT NULL,
    -- The count ends then.
    until timestamptz NOT NULL,
    CONSTRAINT operator_sign_ins_bounds CHECK (
        until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND octet_length(subject) <= 100000)
);

-- 11. Archives --------------------------------------------------------------------------------------------------------------
-- Finished orders that were written into files and deleted here (docs/decisions/0037-a-quarter-lighter.md).

-- One file of finished orders, which `esimctl archive run` stores before it deletes them.
CREATE TABLE archives (
    archive integer PRIMARY KEY,
    -- Where the file was stored, for people: a path or the URL of an object.
    file text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    -- Null: the orders are reserved and still in the tables, and the file may be there or not. The next run gives the archive
    -- another file and removes this one, so no order is in two files and nobody replaces a file that counts.
    completed_at timestamptz,
    -- The first and the last order that were reserved for it. Ids of orders are in the order of time.
    first_order uuid NOT NULL,
    last_order uuid NOT NULL,
    orders bigint NOT NULL DEFAULT 0,
    -- How many orders of each partner are in it, so that an erasure can say in which files data of the partner is left. It cannot
    -- be counted from `archived_orders`, whose rows end earlier than the files.
    partners jsonb NOT NULL DEFAULT '{}',
    sha256 text,
    CONSTRAINT archives_bounds CHECK (
        least(began_at, completed_at) >= '0001-01-01 00:00:00+00' AND greatest(began_at, completed_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(file), octet_length(sha256)) <= 100000
        AND pg_column_size(partners) <= 10000000)
);

-- What is left of an archived order: its external id stays taken, and look-ups say that it is archived. The row is
-- committed at least 20 s before the order is deleted. It ends by the term `archived` of retention.
CREATE TABLE archived_orders (
    order_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    external_order_id text NOT NULL,
    -- A refused order does not occupy its external id.
    refused boolean NOT NULL,
    archive integer NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT archived_orders_bounds CHECK (
        archived_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND octet_length(external_order_id) <= 100000)
);
-- Storing an order looks its external id up here.
CREATE INDEX archived_orders_external ON archived_orders (external_order_id, partner_id);
-- Retention reads rows in the order of time. All rows of a batch have one time, so the index stores it once.
CREATE INDEX archived_orders_at ON archived_orders (archived_at);

-- 12. Commits that a server has lost ----------------------------------------------------------------------------------------

-- The pulse of each process: a row that it commits once a second. If the row is older than the last pulse whose commit
-- was acknowledged to the process, the server has lost commits, and probably those of purchases, too
-- (docs/decisions/0026-any-server-lost.md).
CREATE TABLE pulses (
    -- The process.
    instance uuid PRIMARY KEY,
    stage text NOT NULL,
    -- Grows with each pulse.
    number bigint NOT NULL,
    -- The timeline of the server, which grows with each promotion.
    timeline bigint NOT NULL,
    -- Whether commits waited for a standby.
    replicated boolean NOT NULL,
    at timestamptz NOT NULL,
    -- When the process began. A process that has died is missed until another one has begun after it.
    started_at timestamptz NOT NULL DEFAULT now(),
    -- Whether the process has ended in an orderly way, so that nobody misses it. The row stays, because the newest pulse of
    -- all says whether commits were replicated.
    stopped boolean NOT NULL DEFAULT false,
    -- Since when it has been without NATS, so that the first page of the console, which needs no NATS, can say so.
    no_nats_since timestamptz,
    -- How far PostgreSQL's clock is ahead of its own, if that is so far that it does not work, and what NATS refuses to it for
    -- lack of a permission; both since when.
    clock_ahead double precision,
    clock_off_since timestamptz,
    nats_refused text,
    nats_refused_since timestamptz,
    CONSTRAINT pulses_bounds CHECK (
        least(at, started_at, no_nats_since, clock_off_since, nats_refused_since) >= '0001-01-01 00:00:00+00'
        AND greatest(at, started_at, no_nats_since, clock_off_since, nats_refused_since) <= '9999-12-31 00:00:00+00'
        -- What is refused are words of ours: a stolen role of a stage tells operators nothing else by it.
        AND (nats_refused IS NULL OR nats_refused ~ '^((publish|subscribe|ask) [A-Z_]{1,20}(, |$))+$')
        AND clock_ahead BETWEEN -1e12 AND 1e12
        AND octet_length(stage) <= 100000)
);
-- A process that has just started reads the newest pulse of all.
CREATE INDEX pulses_at ON pulses (at);

-- The timelines at whose beginning commits may have been lost. Each is acted on once, so that a process that notices it
-- late does not open breakers that an operator has closed meanwhile.
CREATE TABLE commit_losses (
    timeline bigint PRIMARY KEY,
    told text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT commit_losses_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND octet_length(told) <= 100000)
);
-- A loss of a later timeline than the server's is one of another cluster. A dump that was loaded into a new server brings such
-- rows, because its timelines begin at 1 again, and `commits_lost` would take the first real loss of that timeline for one that
-- was acted on, and let the buying go on. So they are deleted whenever pulses are, which every process does when it starts. What
-- such a loss did stands in `operator_actions`, and the breakers that it opened stay open.
CREATE FUNCTION forget_losses_of_another_cluster() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    DELETE FROM commit_losses
    WHERE timeline > ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    RETURN NULL;
END
$$;
CREATE TRIGGER pulses_deleted AFTER DELETE ON pulses FOR EACH STATEMENT EXECUTE FUNCTION forget_losses_of_another_cluster();

-- The commit fence. It opens the breakers of all providers until an operator closes them, because the database has forgotten
-- purchases and would let them be made again. Returns false if that was done before for this timeline; null stands for a loss
-- within a timeline.
--
-- Whoever calls it says that the server has forgotten commits. The database cannot check that within a timeline, because it is
-- the one that has forgotten; every stage may therefore stop the buying, although only provisioners and operators may change
-- breakers in other ways. It says so under its own name: the reason is made here, the role is part of it, and a row in
-- `operator_actions` records it. A timeline is checked, because a loss that is claimed before it happens would hide the real
-- one.
--
-- The versions of breakers, of the configuration and of its rows take a leap, because those of changes that were lost are given
-- out again: calls that began at one of them must not close the breaker, and a notifier that has read its endpoints at one of
-- them must not take them for current. Those of breakers begin anew at 9 * 10^18, so that no stored version can make the fence
-- fail.
CREATE FUNCTION commits_lost(process uuid, acknowledged bigint, new_timeline bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    timeline bigint := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    never CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    why text;
    opened bigint;
BEGIN
    IF new_timeline <> timeline THEN
        RAISE EXCEPTION 'the server is on timeline %, so no loss before timeline % can be known', timeline, new_timeline
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    why := CASE
        WHEN acknowledged IS NOT NULL THEN format(
            'commits were lost: the database has pulse %s of process %s, and pulse %s was acknowledged',
            coalesce((SELECT number FROM pulses WHERE instance = process), 0), process, acknowledged)
        WHEN new_timeline IS NOT NULL THEN format(
            'commits may be lost: the timeline is %s now, and commits did not wait for a standby before', new_timeline)
        ELSE 'commits were lost'
    END || format(' (%s says so)', session_user);
    IF new_timeline IS NOT NULL THEN
        INSERT INTO commit_losses (timeline, told) VALUES (new_timeline, why) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    SELECT count(*) INTO opened FROM providers WHERE open_until IS DISTINCT FROM never;
    UPDATE providers
    SET reason = CASE WHEN open_until = never THEN reason
                      ELSE why || coalesce(' (open before: ' || left(reason, 1000) || ')', '') END,
        open_until = never, version = (version + 1000000) % 9000000000000000000, changed_at = now(),
        failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END;
    UPDATE system SET version = version + 1000000;
    PERFORM setval('configuration_versions', nextval('configuration_versions') + 1000000);
    IF opened > 0 THEN
        INSERT INTO operator_actions (action_id, operator, database_role, command, target, affected, reason)
        VALUES (gen_random_uuid(), session_user, session_user, 'commit fence', 'all providers', opened, why);
    END IF;
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) FROM PUBLIC;

-- 13. The rights of the stages in shared tables -----------------------------------------------------------------------------
-- Each stage sees and changes its own work only, although the tables are shared: whoever has a stage's credentials cannot stop
-- another stage by deleting its work. The owner, operators and the console see everything.

-- The provisioner may insert a delivery's row, because it creates deliveries. Ingress inserts what partners ask about eSIMs.
ALTER TABLE work ENABLE ROW LEVEL SECURITY;
CREATE POLICY work_of_stage ON work
    USING (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                             WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                             WHEN 'esim_ingress' THEN kind = 'deliver' ELSE true END)
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase', 'moved', 'resend', 'notices')
                                  WHEN 'esim_ingress' THEN kind IN ('deliver', 'usage', 'give_back') ELSE true END);

-- Retention, which runs in the notifier, keeps the profiles of parked placements, so the notifier may read those.
ALTER TABLE held ENABLE ROW LEVEL SECURITY;
CREATE POLICY held_readable ON held FOR SELECT USING (current_user <> 'esim_provisioner' OR state = 'parked');
CREATE POLICY held_of_stage ON held
    USING (CASE current_user WHEN 'esim_provisioner' THEN state = 'parked' WHEN 'esim_notifier' THEN state <> 'parked'
                             WHEN 'esim_ingress' THEN state <> 'parked' ELSE true END);

-- The provisioner moves its own sweep only, so that it can neither hide deliveries nor keep data from being erased, and the
-- notifier moves all others.
ALTER TABLE walks ENABLE ROW LEVEL SECURITY;
CREATE POLICY walks_readable ON walks FOR SELECT USING (true);
CREATE POLICY walks_of_stage ON walks FOR UPDATE
    USING (CASE current_user WHEN 'esim_provisioner' THEN name = 'placements' WHEN 'esim_notifier' THEN name <> 'placements'
                             ELSE true END);

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
