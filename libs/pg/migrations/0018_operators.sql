-- serves: 9
-- Operators who sign in at the console, and more about what operators did (docs/decisions/0034-operations.md).
-- Programs of schema 9 know none of these tables, and go on recording actions without the new columns.

CREATE TABLE operators (
    operator_id uuid PRIMARY KEY,
    -- What the operator types to sign in, and what recorded actions name.
    name text NOT NULL CONSTRAINT operators_name_key UNIQUE,
    -- `viewer`, `support` or `operator`.
    role text NOT NULL,
    -- The Argon2id hash of the password; null until the operator has set one by the link.
    password text,
    -- The one-time link that sets the password: the SHA-256 digest of its token, and its end.
    setup_digest bytea,
    setup_until timestamptz,
    disabled_at timestamptz,
    signed_in_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- A signed-in browser. The token is in its cookie only, so that whoever reads this table cannot sign in.
CREATE TABLE operator_sessions (
    token_digest bytea PRIMARY KEY,
    operator_id uuid NOT NULL,
    -- The address from which it was opened.
    source text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Written at most once a minute.
    used_at timestamptz NOT NULL DEFAULT now(),
    ends_at timestamptz NOT NULL
);
CREATE INDEX operator_sessions_operator ON operator_sessions (operator_id);

-- Attempts to sign in that have not succeeded, counted for each name and each address; bounded by the program.
CREATE TABLE operator_sign_ins (
    -- `name …` or `source …`.
    subject text PRIMARY KEY,
    attempts integer NOT NULL,
    -- The count ends then.
    until timestamptz NOT NULL
);

-- Through which program an action was made: `esimctl`, `console` or `api`, from which address, and what it changed, without
-- secrets. Null: recorded by a program of an older schema, or there is nothing to say.
ALTER TABLE operator_actions
    ADD COLUMN via text,
    ADD COLUMN source text,
    ADD COLUMN before jsonb,
    ADD COLUMN after jsonb;
