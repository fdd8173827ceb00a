-- serves: 24
-- contract: the view `redeliveries` has the old name and the old columns of the table, so programs of schema 24 go on with it,
--   and they find their tables `operations` and `operation_parts`, of which 0030 carries the rows over.
-- One resend (docs/decisions/0035-fewer-kinds-one-truth.md): what a partner calls a redelivery, an operator's replay of one
-- webhook and an operation on the webhooks of many partners are rows of one table, with one worker and one list.

ALTER TABLE redeliveries RENAME TO resends;
ALTER TABLE resends RENAME COLUMN redelivery_id TO resend_id;
ALTER TABLE resends RENAME COLUMN redelivered TO resent;
ALTER TABLE resends
    -- Null: it is of several partners, and each of them has a row that names it as its batch.
    ALTER COLUMN partner_id DROP NOT NULL,
    ADD COLUMN batch_id uuid,
    -- The one webhook that it is about. Such a row has ended, because the webhook is due when the row is stored.
    ADD COLUMN delivery_id uuid,
    -- Who asked: the operator's name, or `partner`; through `esimctl`, `console` or `api`; and why.
    ADD COLUMN asked_by text NOT NULL DEFAULT 'partner',
    ADD COLUMN via text NOT NULL DEFAULT 'api',
    ADD COLUMN reason text NOT NULL DEFAULT '',
    -- Partners that had a running resend already, and so are no part of it.
    ADD COLUMN skipped bigint NOT NULL DEFAULT 0;
ALTER TABLE resends ADD CONSTRAINT resends_bounds CHECK (
    greatest(octet_length(asked_by), octet_length(via), octet_length(reason)) <= 100000) NOT VALID;

CREATE VIEW redeliveries AS
SELECT resend_id AS redelivery_id, partner_id, state, since, until, matching, phase, after_at, after_id,
       resent AS redelivered, created_at, ended_at, cancelled_at
FROM resends WHERE delivery_id IS NULL AND partner_id IS NOT NULL;

-- Operations, which are resends of several partners. They are not worked off themselves, so they are stored as ended.
INSERT INTO resends (resend_id, state, since, until, phase, created_at, ended_at, cancelled_at, asked_by, via, reason, skipped)
SELECT operation_id, filter->>'state', coalesce((filter->>'since')::timestamptz, created_at),
       coalesce((filter->>'until')::timestamptz, created_at), 'sending', created_at, created_at, cancelled_at,
       operator, via, reason, skipped
FROM operations;
