-- serves: 5
-- What operators changed with `esimctl`, and why. Each row commits with its change.
CREATE TABLE operator_actions (
    action_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    -- The operator's name, as given to esimctl.
    operator text NOT NULL,
    database_role text NOT NULL DEFAULT session_user,
    command text NOT NULL,
    -- The placement, delivery or partner that the command named, with its filters.
    target text NOT NULL,
    -- Rows that the command changed.
    affected bigint NOT NULL,
    reason text NOT NULL
);
CREATE INDEX operator_actions_at ON operator_actions (at);
