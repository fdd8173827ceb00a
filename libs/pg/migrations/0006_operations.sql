-- serves: 6
-- Operations: how long data is kept, what operators did, and what partners see.

-- How long each class of data is kept, and how far erasing has come: docs/decisions/0018-retention.md.
CREATE TABLE retention (
    -- `profiles`, `attempts` (and events), `audit`.
    class text PRIMARY KEY,
    -- Null: for ever.
    days integer CHECK (days BETWEEN 1 AND 36500),
    -- The walk reads the rows of the class in the order of time: the last key that it passed, and the time until which
    -- everything is erased or has a row in `retention_due`. A new term begins a new walk.
    after text NOT NULL DEFAULT '',
    up_to timestamptz NOT NULL DEFAULT '-infinity',
    began_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO retention (class, days) VALUES ('profiles', 90), ('attempts', 30), ('audit', NULL);

-- Profiles that were not delivered, or not for long enough, when the walk passed them. `at` is the next look.
CREATE TABLE retention_due (
    topup_id text COLLATE "C" PRIMARY KEY,
    at timestamptz NOT NULL
);
CREATE INDEX retention_due_at ON retention_due (at);

-- What operators, and partners themselves, changed. Each row commits with its change.
CREATE TABLE operator_actions (
    action_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    -- The operator's name, as given to esimctl.
    operator text NOT NULL,
    database_role text NOT NULL DEFAULT session_user,
    command text NOT NULL,
    -- The placement, delivery or partner that the command named, with its filters.
    target text NOT NULL,
    -- The number of changed rows.
    affected bigint NOT NULL,
    reason text NOT NULL
);
CREATE INDEX operator_actions_at ON operator_actions (at);

-- The units of partners with their owner, their state as partners see it, and their delivery. The view has the rights
-- of the role that reads it.
CREATE VIEW partner_units WITH (security_invoker = true) AS
SELECT o.partner_id, o.order_id, o.external_order_id, t.topup_id, t.position, t.option_id,
       CASE WHEN e.ready_at IS NOT NULL THEN 'ready' WHEN t.state = 'failed' THEN 'failed'
            WHEN p.state = 'parked' THEN 'on_hold' ELSE 'processing' END AS state,
       p.refusal_status, p.refusal_message, e.iccid, e.profile, e.ready_at, e.erased_at,
       e.delivery_id, d.state AS delivery, d.attempt, d.attempted_at, d.delivered_at, d.created_at AS delivery_created_at
FROM orders o
JOIN placements p ON p.order_id = o.order_id
JOIN topups t ON t.placement_id = p.placement_id
LEFT JOIN esims e ON e.topup_id = t.topup_id
LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id;
