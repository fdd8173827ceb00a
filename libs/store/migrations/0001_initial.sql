-- The truth of the ordering pipeline. Whatever a stage still has to do carries `redrive_at`; JetStream
-- only makes it happen sooner.

-- Bumped by every change of a partner or an option. The row lock serialises those changes until they
-- commit, so a reader that has seen version N has seen everything up to N.
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
    access_key text NOT NULL CONSTRAINT partners_access_key_key UNIQUE,
    -- Encrypted under the master key, like every secret here.
    secret_key bytea,
    webhook_url text,
    webhook_secret bytea NOT NULL,
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL
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
    version bigint NOT NULL
);
CREATE INDEX options_version ON options (version);
CREATE TRIGGER options_version BEFORE INSERT OR UPDATE ON options
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();

-- Rows of the four tables below are written in batches by single statements and never deleted, and
-- partners and options are never deleted either. Foreign keys to those two are left out on purpose:
-- they would lock the same partner row for every order.

CREATE TABLE orders (
    order_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    external_order_id text NOT NULL,
    -- Answered with 422: nothing was bought, and the external id is free again.
    refused boolean NOT NULL DEFAULT false,
    -- The create-order request is answered before this, or never.
    answer_by timestamptz NOT NULL,
    -- W3C trace context of the POST.
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX orders_external_order_id_key ON orders (partner_id, external_order_id) WHERE NOT refused;

-- The unit of purchase: the part of an order bought from one provider.
CREATE TABLE placements (
    placement_id uuid PRIMARY KEY,
    order_id uuid NOT NULL REFERENCES orders,
    provider text NOT NULL,
    state text NOT NULL DEFAULT 'accepted'
        CHECK (state IN ('accepted', 'placing', 'placed', 'refused', 'failed', 'parked')),
    -- The last recorded attempt: recorded before the provider is called.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    -- A look-up since that attempt found no purchase.
    not_found_at timestamptz,
    placed_at timestamptz,
    reason text,
    -- When a provisioner takes it up if nobody else has; null when nothing is left to do.
    redrive_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX placements_order ON placements (order_id);
CREATE INDEX placements_due ON placements (provider, redrive_at) WHERE redrive_at IS NOT NULL;
CREATE INDEX placements_parked ON placements (created_at) WHERE state = 'parked';

-- One unit of an order.
CREATE TABLE topups (
    topup_id text CONSTRAINT topups_topup_id_key PRIMARY KEY,
    placement_id uuid NOT NULL REFERENCES placements,
    order_id uuid NOT NULL,
    -- The place in the answer of create-order, from 0.
    position integer NOT NULL,
    option_id uuid NOT NULL,
    provider text NOT NULL,
    -- What to buy, as the catalogue said when the order was accepted.
    provider_option_id text NOT NULL,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'ready', 'failed', 'parked')),
    -- The provider's name for this unit; assigned once.
    provider_unit_id text,
    iccid text,
    -- smdp, activation code and expiry date, encrypted: whoever has them can use the line.
    profile bytea,
    reason text,
    ready_at timestamptz
);
CREATE INDEX topups_placement ON topups (placement_id);
CREATE INDEX topups_order ON topups (order_id);
CREATE UNIQUE INDEX topups_provider_unit_key ON topups (provider, provider_unit_id) WHERE provider_unit_id IS NOT NULL;
CREATE UNIQUE INDEX topups_iccid_key ON topups (provider, iccid) WHERE iccid IS NOT NULL;

-- The obligation to tell the partner of one topup.
CREATE TABLE deliveries (
    topup_id text PRIMARY KEY REFERENCES topups,
    partner_id uuid NOT NULL,
    state text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'delivered', 'exhausted', 'no_endpoint')),
    -- How many attempts have ended.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    -- Of the last attempt: the answer's status, and what kept it from counting.
    status integer,
    error text,
    -- When the notifier takes it up if no readiness event has; null when nothing is left to do.
    redrive_at timestamptz,
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deliveries_due ON deliveries (partner_id, redrive_at) WHERE redrive_at IS NOT NULL;
CREATE INDEX deliveries_no_endpoint ON deliveries (partner_id) WHERE state = 'no_endpoint';
