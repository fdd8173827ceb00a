-- serves: 68
-- An archive is one file of finished orders, which `esimctl archive run` stores before it deletes them. Nothing comes back from
-- it, so what a restore needed is gone (docs/decisions/0037-a-quarter-lighter.md). No installation has archives.
DROP TABLE archives;
CREATE TABLE archives (
    archive integer PRIMARY KEY,
    -- Where the file was stored, for people: a path or the URL of an object.
    file text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    -- Null: the orders are reserved and still in the tables, and the file may be there or not. The next run stores it under the
    -- same name, so no order is in two files.
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
        AND greatest(octet_length(file), octet_length(sha256)) <= 100000),
    CONSTRAINT archives_partners_bounds CHECK (pg_column_size(partners) <= 10000000)
);

-- The deliveries that an order can have: those of its units to the first endpoint (of the eSIM, and the event about its failure,
-- whose id is derived from the topup), and those to further endpoints.
CREATE VIEW order_deliveries WITH (security_invoker = true) AS
    SELECT p.order_id, t.topup_id, named.delivery_id
    FROM placements p
    JOIN topups t ON t.placement_id = p.placement_id
    LEFT JOIN esims e ON e.topup_id = t.topup_id
    CROSS JOIN LATERAL unnest(
        ARRAY[e.delivery_id, md5('topup.failed ' || t.topup_id)::uuid]
        || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id)) AS named (delivery_id)
    WHERE named.delivery_id IS NOT NULL;
