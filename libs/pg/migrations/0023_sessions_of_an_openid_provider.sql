-- serves: 18
-- Sessions of people who have no account here, because an OpenID provider says who they are
-- (docs/decisions/0033-console.md). Programs of older schemas find no operator for such a session, and ask its browser to
-- sign in.
ALTER TABLE operator_sessions
    -- The issuer that has said it; null for a session of an account in `operators`. The other two columns go with it.
    ADD COLUMN issuer text,
    -- What recorded actions name, such as `oidc:ana@example.com`.
    ADD COLUMN name text,
    -- `viewer`, `support` or `operator`, as the provider's claim said when the session began.
    ADD COLUMN role text;
