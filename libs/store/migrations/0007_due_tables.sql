-- serves: 7
-- contract: no statement relies on the foreign keys, and programs of schema 5 and 6 always set the two columns
-- Due work moves into narrow tables of its own, eSIMs into an insert-only table, and the rows of the hot
-- path are updated in place (HOT): docs/decisions/0016-hot-path.md. This step only adds and relaxes, so
-- programs of schema 5 and 6 go on working while it runs and until they are replaced.

-- A placement younger than its first lease needs no row here. Later, whatever needs a provisioner has one.
CREATE TABLE placement_due (
    placement_id uuid PRIMARY KEY,
    provider text NOT NULL,
    -- What fails together at the provider, usually one option.
    lane text NOT NULL,
    partner_id uuid NOT NULL,
    -- A purchase is due; otherwise a look-up or a collect.
    buys boolean NOT NULL,
    at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE INDEX placement_due_lane ON placement_due (provider, buys, lane, partner_id, at);
CREATE INDEX placement_due_at ON placement_due (provider, at);

-- Placements that wait for an operator, parked or not any more polled.
CREATE TABLE placement_parked (
    placement_id uuid PRIMARY KEY,
    provider text NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX placement_parked_at ON placement_parked (provider, at);

-- The same for deliveries.
CREATE TABLE delivery_due (
    topup_id text PRIMARY KEY,
    partner_id uuid NOT NULL,
    at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE INDEX delivery_due_partner ON delivery_due (partner_id, at);

-- Deliveries that nothing is due for until somebody acts: `exhausted` or `no_endpoint`.
CREATE TABLE delivery_held (
    topup_id text PRIMARY KEY,
    partner_id uuid NOT NULL,
    state text NOT NULL CHECK (state IN ('exhausted', 'no_endpoint')),
    at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX delivery_held_partner ON delivery_held (partner_id, state);
CREATE INDEX delivery_held_state ON delivery_held (state, at);

-- How far each stage has looked for rows whose first lease ended without an outcome.
CREATE TABLE sweeps (
    stage text PRIMARY KEY,
    -- Everything created until then is finished or has a due row.
    up_to timestamptz NOT NULL,
    -- Once no transaction older than `fence_xid` runs, `up_to` may move to `fence_at`.
    fence_at timestamptz,
    fence_xid xid8
);
INSERT INTO sweeps (stage, up_to) VALUES ('placements', now()), ('deliveries', now());

-- A unit that the provider has named, and its profile once there is one. Rows are inserted, and updated
-- at most once, when a profile comes later than the unit.
CREATE TABLE esims (
    topup_id text PRIMARY KEY,
    provider text NOT NULL,
    provider_unit_id text NOT NULL,
    iccid text,
    -- smdp, activation code and expiry date, encrypted: whoever has them can use the line.
    profile bytea,
    ready_at timestamptz
);
CREATE UNIQUE INDEX esims_provider_unit_key ON esims (provider, provider_unit_id);
CREATE UNIQUE INDEX esims_iccid_key ON esims (provider, iccid) WHERE iccid IS NOT NULL;

-- Only the lease of a due row changes an index now; state, attempt and times change in place.
ALTER TABLE placements
    ADD COLUMN partner_id uuid,
    ADD COLUMN lane text,
    -- What the provider said when it refused.
    ADD COLUMN refusal_status text,
    ADD COLUMN refusal_message text,
    -- Parked although something of it is bought: only an operator moves it.
    ADD COLUMN disputed boolean NOT NULL DEFAULT false,
    SET (fillfactor = 60);
ALTER TABLE deliveries
    ADD COLUMN order_id uuid,
    SET (fillfactor = 70);
ALTER TABLE orders
    -- Its request may still be answered with 422, until `answer_by`.
    ADD COLUMN refusable boolean NOT NULL DEFAULT false;

-- The replicas that call a provider, and their leased shares of its rate limit.
CREATE TABLE provider_replicas (
    provider text NOT NULL,
    instance text NOT NULL,
    -- Calls per second.
    wanted double precision NOT NULL,
    share double precision NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (provider, instance)
);

-- A partner's own limits; null: the service's defaults.
ALTER TABLE partners
    ADD COLUMN max_in_flight integer,
    ADD COLUMN requests_per_second integer,
    ADD COLUMN units_per_second integer,
    ADD CONSTRAINT partners_limits CHECK (least(max_in_flight, requests_per_second, units_per_second) > 0) NOT VALID;

-- One statement writes an order with all its parts, so the keys hold by construction; checking each row
-- again cost more than writing it.
ALTER TABLE placements DROP CONSTRAINT placements_order_id_fkey;
ALTER TABLE topups DROP CONSTRAINT topups_placement_id_fkey;
ALTER TABLE deliveries DROP CONSTRAINT deliveries_topup_id_fkey;
ALTER TABLE topups ALTER COLUMN order_id DROP NOT NULL, ALTER COLUMN provider DROP NOT NULL;

-- What programs of schema 5 and 6 write is carried over while they run.
CREATE FUNCTION carry_placement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.redrive_at IS NULL THEN
        DELETE FROM placement_due WHERE placement_id = NEW.placement_id;
    ELSE
        INSERT INTO placement_due (placement_id, provider, lane, partner_id, buys, at)
        SELECT NEW.placement_id, NEW.provider, coalesce(NEW.lane, ''), o.partner_id, NEW.state = 'accepted',
               NEW.redrive_at
        FROM orders o WHERE o.order_id = NEW.order_id
        ON CONFLICT (placement_id) DO UPDATE SET buys = excluded.buys, at = excluded.at;
    END IF;
    IF NEW.state = 'parked' THEN
        INSERT INTO placement_parked (placement_id, provider) VALUES (NEW.placement_id, NEW.provider)
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM placement_parked WHERE placement_id = NEW.placement_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER carry_inserted AFTER INSERT ON placements
    FOR EACH ROW WHEN (NEW.redrive_at IS NOT NULL) EXECUTE FUNCTION carry_placement();
CREATE TRIGGER carry_updated AFTER UPDATE OF redrive_at ON placements
    FOR EACH ROW EXECUTE FUNCTION carry_placement();

CREATE FUNCTION carry_delivery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.redrive_at IS NULL THEN
        DELETE FROM delivery_due WHERE topup_id = NEW.topup_id;
    ELSE
        INSERT INTO delivery_due (topup_id, partner_id, at) VALUES (NEW.topup_id, NEW.partner_id, NEW.redrive_at)
        ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at;
    END IF;
    IF NEW.state IN ('exhausted', 'no_endpoint') THEN
        INSERT INTO delivery_held (topup_id, partner_id, state) VALUES (NEW.topup_id, NEW.partner_id, NEW.state)
        ON CONFLICT (topup_id) DO UPDATE SET state = excluded.state;
    ELSE
        DELETE FROM delivery_held WHERE topup_id = NEW.topup_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER carry_inserted AFTER INSERT ON deliveries
    FOR EACH ROW WHEN (NEW.redrive_at IS NOT NULL) EXECUTE FUNCTION carry_delivery();
CREATE TRIGGER carry_updated AFTER UPDATE OF redrive_at ON deliveries
    FOR EACH ROW EXECUTE FUNCTION carry_delivery();

CREATE FUNCTION carry_topup() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at)
    VALUES (NEW.topup_id, NEW.provider, NEW.provider_unit_id, NEW.iccid, NEW.profile, NEW.ready_at)
    ON CONFLICT (topup_id) DO UPDATE
    SET iccid = excluded.iccid, profile = excluded.profile, ready_at = excluded.ready_at;
    RETURN NULL;
END
$$;
CREATE TRIGGER carry_updated AFTER UPDATE OF provider_unit_id ON topups
    FOR EACH ROW WHEN (NEW.provider_unit_id IS NOT NULL) EXECUTE FUNCTION carry_topup();
