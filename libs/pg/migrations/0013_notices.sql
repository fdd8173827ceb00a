-- serves: 9
-- Notices: what partners are told on another channel than the endpoint that fails (docs/decisions/0027-partners-miss-nothing.md).
-- The channel is a further endpoint (0010) with the purpose `notices`, of which a partner has at most one. Its `url` is an
-- https URL, or `mailto:` and an e-mail address. It gets notices once it is verified. Programs of an older schema create
-- none of these rows, and an older notifier leaves the deliveries to further endpoints alone.

-- The one-time code that was sent last to an endpoint that is not verified: its digest, until when it is valid, and how
-- many wrong codes were given since then. The code itself is never stored, because the notifier makes it when it sends it.
ALTER TABLE further_endpoints
    ADD COLUMN code_digest bytea,
    ADD COLUMN code_until timestamptz,
    ADD COLUMN code_tries integer NOT NULL DEFAULT 0;

-- What a notice says beside its kind; null for other deliveries. It never holds anything of an eSIM.
ALTER TABLE deliveries ADD COLUMN notice jsonb;

-- What the partner is told of an endpoint's health, so that it is told of changes only.
ALTER TABLE endpoints
    -- When the first of the failures in a row was recorded.
    ADD COLUMN failing_since timestamptz,
    -- `failing` or `blocked`; null is healthy. It outlives a block that an operator ends, until the endpoint acknowledges
    -- something and so has recovered. `told_at` is when it became this.
    ADD COLUMN told text,
    ADD COLUMN told_at timestamptz,
    -- When the partner was told that the retries of a webhook have ended. Further ones are not told, until the endpoint
    -- has recovered or a day has passed.
    ADD COLUMN exhausted_told_at timestamptz;

-- The addresses from which webhooks come, as partners were told last; one row, or none as long as they were never set.
CREATE TABLE source_addresses (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    addresses text[] NOT NULL,
    told_at timestamptz NOT NULL DEFAULT now()
);
