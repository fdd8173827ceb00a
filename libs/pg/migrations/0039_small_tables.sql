-- serves: 24
-- contract: views under the old names serve the programs of the older schemas, statement by statement
-- Five small tables become two, and one becomes a column (docs/decisions/0035-fewer-kinds-one-truth.md). Each old table is
-- renamed before its rows are copied, because the lock that this takes keeps programs from changing a row in between.

-- What there is one of in a system: the version of its configuration, and the addresses that partners were told.
ALTER TABLE configuration_version RENAME TO system;
ALTER TABLE system RENAME CONSTRAINT configuration_version_pkey TO system_pkey;
ALTER TABLE system RENAME CONSTRAINT configuration_version_singleton_check TO system_singleton_check;
ALTER TABLE system ALTER COLUMN version SET DEFAULT 0;
ALTER TABLE system
    -- The addresses from which webhooks come, as partners were told last; empty as long as they were never set.
    ADD COLUMN addresses text[] NOT NULL DEFAULT '{}',
    ADD COLUMN told_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE system ADD CONSTRAINT system_bounds CHECK (
    told_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00' AND pg_column_size(addresses) <= 100000) NOT VALID;
ALTER TABLE source_addresses RENAME TO old_source_addresses;
INSERT INTO system (addresses, told_at) SELECT addresses, told_at FROM old_source_addresses
    ON CONFLICT (singleton) DO UPDATE SET addresses = excluded.addresses, told_at = excluded.told_at;
DROP TABLE old_source_addresses;

-- A row of a partner or an option that changes takes the next version, see 0001.
CREATE OR REPLACE FUNCTION next_configuration_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE system SET version = version + 1 RETURNING version INTO NEW.version;
    RETURN NEW;
END
$$;

-- How far each walk has come that goes through rows in the order of time: the sweeps of the stages (`placements` and
-- `deliveries`), and one walk for each class of data that is erased after a term.
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
ALTER TABLE sweeps RENAME TO old_sweeps;
INSERT INTO walks (name, up_to, fence_at, fence_xid) SELECT stage, up_to, fence_at, fence_xid FROM old_sweeps;
DROP TABLE old_sweeps;
ALTER TABLE retention RENAME TO old_retention;
INSERT INTO walks (name, up_to, after, days, began_at) SELECT class, up_to, after, days, began_at FROM old_retention;
DROP TABLE old_retention;
-- The provisioner moves its own sweep only, so that it can neither hide deliveries nor keep data from being erased, and the
-- notifier moves all others.
ALTER TABLE walks ENABLE ROW LEVEL SECURITY;
CREATE POLICY walks_readable ON walks FOR SELECT USING (true);
CREATE POLICY walks_of_stage ON walks FOR UPDATE
    USING (CASE current_user WHEN 'esim_provisioner' THEN name = 'placements' WHEN 'esim_notifier' THEN name <> 'placements'
                             ELSE true END);

-- How many orders of each partner an archive holds, so that an erasure can say in which files data of the partner is left.
-- It cannot be counted from `archived_orders`, whose rows end earlier than the files.
ALTER TABLE archives ADD COLUMN partners jsonb NOT NULL DEFAULT '{}';
ALTER TABLE archives ADD CONSTRAINT archives_partners_bounds CHECK (pg_column_size(partners) <= 10000000) NOT VALID;
ALTER TABLE archive_partners RENAME TO old_archive_partners;
INSERT INTO archives (archive, folder, ordered_before, reserved_to, moved_to, partners)
    SELECT a.archive, a.folder, a.ordered_before, a.reserved_to, a.moved_to, jsonb_object_agg(p.partner_id, p.orders)
    FROM archives a JOIN old_archive_partners p ON p.archive = a.archive
    GROUP BY a.archive
    ON CONFLICT (archive) DO UPDATE SET partners = excluded.partners;
DROP TABLE old_archive_partners;

-- For programs of older schemas. The views end when no such program can run beside this version any more.
CREATE VIEW configuration_version AS SELECT singleton, version FROM system;
CREATE VIEW source_addresses AS SELECT singleton, addresses, told_at FROM system;
CREATE VIEW sweeps WITH (security_invoker = true) AS
    SELECT name AS stage, up_to, fence_at, fence_xid FROM walks WHERE name IN ('placements', 'deliveries');
CREATE VIEW retention WITH (security_invoker = true) AS
    SELECT name AS class, days, after, up_to, began_at FROM walks WHERE name NOT IN ('placements', 'deliveries');
CREATE VIEW archive_partners WITH (security_invoker = true) AS
    SELECT a.archive, p.key::uuid AS partner_id, p.value::bigint AS orders
    FROM archives a CROSS JOIN LATERAL jsonb_each_text(a.partners) p;
