-- serves: 12
-- Operations of operators on the webhooks of many partners (docs/decisions/0034-operations.md).
-- Programs of schema 12 carry the redeliveries of an operation out like those of partners, and need not know of it.

-- What an operator started. The work is one redelivery (0012) for each partner that has something to send again, which the
-- notifiers work off, so that an operation goes on whatever becomes of the program that started it.
CREATE TABLE operations (
    operation_id uuid PRIMARY KEY,
    -- `delivery replay`.
    kind text NOT NULL,
    -- The filter as JSON, for people.
    filter jsonb NOT NULL,
    operator text NOT NULL,
    via text NOT NULL,
    reason text NOT NULL,
    -- Partners that had a running redelivery already, and so are no part of it.
    skipped bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    cancelled_at timestamptz
);
CREATE INDEX operations_created ON operations (created_at);

-- The redeliveries of an operation.
CREATE TABLE operation_parts (
    operation_id uuid NOT NULL,
    redelivery_id uuid NOT NULL,
    PRIMARY KEY (operation_id, redelivery_id)
);
