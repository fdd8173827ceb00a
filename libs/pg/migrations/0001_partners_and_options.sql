-- serves: 1
-- Who may order, and what: partners with their credentials and limits, and the catalogue of options.
--
-- Ingress keeps both in memory. It asks for everything that changed after the version it knows, so an unchanged
-- configuration costs one small read.

-- Every change of a partner or an option takes the next version. The row lock serialises these changes until they
-- commit. So a reader that has seen version N has seen every change up to N.
CREATE TABLE configuration_version (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version bigint NOT NULL
);
INSERT INTO configuration_version (version) VALUES (0);

CREATE FUNCTION next_configuration_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE configuration_version SET version = version + 1 RETURNING version INTO NEW.version;
    RETURN NEW;
END
$$;

CREATE TABLE partners (
    partner_id uuid PRIMARY KEY,
    name text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('sandbox', 'live')),
    -- Keys and secrets are encrypted under a master key, bound to their row. The old ones stay valid beside the new
    -- ones until their time has passed; afterwards they mean nothing.
    access_key text NOT NULL CONSTRAINT partners_access_key_key UNIQUE,
    secret_key bytea,
    old_access_key text CONSTRAINT partners_old_access_key_key UNIQUE,
    old_secret_key bytea,
    old_keys_until timestamptz,
    -- Whether every request of this partner must sign its query and its body.
    signed_body_required boolean NOT NULL DEFAULT false,
    webhook_url text,
    -- Several partners may have their endpoints on one host, whose requests in flight are limited together.
    webhook_host text GENERATED ALWAYS AS
        (lower(substring(webhook_url FROM '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'))) STORED,
    webhook_secret bytea NOT NULL,
    old_webhook_secret bytea,
    old_webhook_secret_until timestamptz,
    -- The events that the partner asked for, beside the specified webhook.
    webhook_events text[] NOT NULL DEFAULT '{}',
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
    CONSTRAINT partners_limits
        CHECK (least(max_in_flight, requests_per_second, orders_per_second, units_per_second) > 0)
);
CREATE INDEX partners_version ON partners (version);
CREATE TRIGGER partners_version BEFORE INSERT OR UPDATE ON partners
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();

CREATE TABLE options (
    option_id uuid PRIMARY KEY,
    name text NOT NULL,
    provider text NOT NULL,
    provider_option_id text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('sandbox', 'live')),
    enabled boolean NOT NULL DEFAULT true,
    -- The operator's description for partners, beside the name.
    details jsonb NOT NULL DEFAULT '{}' CONSTRAINT options_details CHECK (jsonb_typeof(details) = 'object'),
    version bigint NOT NULL
);
CREATE INDEX options_version ON options (version);
CREATE TRIGGER options_version BEFORE INSERT OR UPDATE ON options
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();
