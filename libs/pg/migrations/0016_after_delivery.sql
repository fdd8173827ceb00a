-- serves: 6
-- What partners ask about an eSIM after its delivery: its data use, and to give it back
-- (docs/decisions/0032-after-delivery.md). Programs of schema 6 ignore both without harm: they show a returned unit as a ready
-- one whose fields were erased, and leave the requests to newer provisioners.

-- One row for each unit that a partner has ever asked about. Ingress writes the question, the provisioner asks the provider
-- and writes the answer. There is no row for all other units, so orders pay nothing.
CREATE TABLE esim_requests (
    topup_id text COLLATE "C" PRIMARY KEY,
    partner_id uuid NOT NULL,
    provider text NOT NULL,
    -- When a provisioner works on the row next. A claim moves it to the end of its lease. Null: nothing is left to do.
    at timestamptz,

    -- The question about the data use: when it was asked, and null once it has an answer.
    usage_asked_at timestamptz,
    -- The last answer of the provider, and when it came. Each part is null if the provider does not say it. The data is in
    -- bytes; its total is null for an eSIM without a limit, too.
    installed boolean,
    data_used bigint,
    data_total bigint,
    ends_at timestamptz,
    read_at timestamptz,
    -- Why the last question has no answer: `not_available`, because the provider shows no use, or `failed`. Null if it has one.
    usage_failure text,
    usage_failed_at timestamptz,

    -- The give-back: `asked`, `sending`, `returned`, `refused` or `parked`; null if it was never asked for. The transitions are
    -- `domain::give_back`.
    give_back text,
    give_back_asked_at timestamptz,
    -- The last attempt. It is recorded before the provider is called.
    attempt integer NOT NULL DEFAULT 0,
    attempted_at timestamptz,
    -- When a look after that attempt first found that the eSIM is not given back.
    not_returned_at timestamptz,
    -- Why it was refused or parked: a code, and what the provider said.
    reason text,
    message text,
    ended_at timestamptz
);
-- The due rows of a provider, the oldest first.
CREATE INDEX esim_requests_due ON esim_requests (provider, at) WHERE at IS NOT NULL;
-- The give-backs that wait for an operator.
CREATE INDEX esim_requests_parked ON esim_requests (provider, ended_at) WHERE give_back = 'parked';

-- When the unit was given back to the provider, which is certain. Its profile is erased in the same transaction, because nobody
-- can install it any more.
ALTER TABLE esims ADD COLUMN returned_at timestamptz;

-- As in 0006, with one more column at the end.
CREATE OR REPLACE VIEW partner_units WITH (security_invoker = true) AS
SELECT o.partner_id, o.order_id, o.external_order_id, t.topup_id, t.position, t.option_id,
       CASE WHEN e.ready_at IS NOT NULL THEN 'ready' WHEN t.state = 'failed' THEN 'failed'
            WHEN p.state = 'parked' THEN 'on_hold' ELSE 'processing' END AS state,
       p.refusal_status, p.refusal_message, e.iccid, e.profile, e.ready_at, e.erased_at,
       e.delivery_id, d.state AS delivery, d.attempt, d.attempted_at, d.delivered_at, d.created_at AS delivery_created_at,
       e.returned_at
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id;
