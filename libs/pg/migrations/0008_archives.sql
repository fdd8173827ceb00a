-- serves: 6
-- Archives: finished orders that were written into files and deleted here (docs/decisions/0026-any-server-lost.md).
-- Programs of schema 6 ignore these tables without harm while nothing is archived. `esimctl archive run` is therefore
-- run only after every ingress knows them, because an older one would accept the external id of an archived order again.

-- One folder with files, written by `esimctl archive run`.
CREATE TABLE archives (
    archive integer PRIMARY KEY,
    -- Where the folder was when it was written, for people. Operators may move it.
    folder text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    -- Null: the run is under way or was interrupted. The next run continues it.
    completed_at timestamptz,
    -- Orders that were created before this time are archived.
    ordered_before timestamptz NOT NULL,
    -- Ids of orders are in the order of time. Up to `reserved_to` every finished order has a row in `archived_orders`,
    -- and up to `moved_to` these orders are in the files and no longer in the tables.
    reserved_to uuid NOT NULL,
    moved_to uuid NOT NULL,
    orders bigint NOT NULL DEFAULT 0,
    restored bigint NOT NULL DEFAULT 0,
    -- The times of the oldest and of the newest order in it.
    first_at timestamptz,
    last_at timestamptz,
    -- For each file its bytes and rows. They are committed together with the deletion of these rows, so what a file holds
    -- beyond them was written by an interrupted batch, and is cut off before the archive is continued.
    files jsonb NOT NULL DEFAULT '{}',
    -- The ids of the master keys that its profiles and responses of endpoints need.
    keys text[] NOT NULL DEFAULT '{}',
    manifest_sha256 text
);

-- How many orders of a partner an archive holds, so that an erasure can say in which files data of the partner is left.
CREATE TABLE archive_partners (
    archive integer NOT NULL,
    partner_id uuid NOT NULL,
    orders bigint NOT NULL,
    PRIMARY KEY (partner_id, archive)
);

-- What is left of an archived order: its external id stays taken, and look-ups say where the order is. The row is
-- committed at least 20 s before the order is deleted. It ends by the term `archived` of retention.
CREATE TABLE archived_orders (
    order_id uuid PRIMARY KEY,
    partner_id uuid NOT NULL,
    external_order_id text NOT NULL,
    -- A refused order does not occupy its external id.
    refused boolean NOT NULL,
    archive integer NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now()
);
-- Storing an order looks its external id up here.
CREATE INDEX archived_orders_external ON archived_orders (external_order_id, partner_id);
-- Retention reads rows in the order of time. All rows of a batch have one time, so the index stores it once.
CREATE INDEX archived_orders_at ON archived_orders (archived_at);

-- `orders`: from this age on finished orders are archived; null is never. `archived`: how long after that an archived
-- order is remembered.
INSERT INTO retention (class, days) VALUES ('orders', NULL), ('archived', 365);
