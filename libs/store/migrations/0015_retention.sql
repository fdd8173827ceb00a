-- serves: 14
-- How long each class of data is kept, and how far erasing has got: docs/decisions/0018-retention.md. Programs of
-- schema 14 erase nothing. A notifier of theirs cannot open an erased profile and retries its webhook.

-- The terms. A partner's own term replaces the default, which has the nil id.
CREATE TABLE retention_terms (
    class text NOT NULL CHECK (class IN ('profiles', 'attempts', 'audit')),
    partner_id uuid NOT NULL,
    -- Null: for ever.
    days integer CHECK (days BETWEEN 1 AND 36500),
    PRIMARY KEY (class, partner_id)
);
INSERT INTO retention_terms (class, partner_id, days) VALUES
    ('profiles', '00000000-0000-0000-0000-000000000000', 90),
    ('attempts', '00000000-0000-0000-0000-000000000000', 30),
    ('audit', '00000000-0000-0000-0000-000000000000', NULL);

-- One walk over the history for each class and term, by an index and in the order of time. It erases what belongs to
-- partners with this term.
CREATE TABLE retention_walks (
    class text NOT NULL,
    days integer NOT NULL,
    -- The last key that it has passed.
    after text NOT NULL DEFAULT '',
    -- Everything older is erased, or has a row in `retention_due`.
    up_to timestamptz NOT NULL DEFAULT '-infinity',
    began_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (class, days)
);

-- Profiles that were not delivered, or not for long enough, when their walk passed. `at` is the next look.
CREATE TABLE retention_due (
    topup_id text PRIMARY KEY,
    at timestamptz NOT NULL
);
CREATE INDEX retention_due_at ON retention_due (at);

-- When the profile, the order, the partner was erased. An erased row keeps its ids, so that neither an external order
-- id nor an ICCID is taken twice. The room on a page lets erasing update its rows in place (HOT).
ALTER TABLE esims ADD COLUMN erased_at timestamptz, SET (fillfactor = 70);
ALTER TABLE orders ADD COLUMN erased_at timestamptz;
ALTER TABLE partners ADD COLUMN erased_at timestamptz;
