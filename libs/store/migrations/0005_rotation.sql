-- A partner's keys and webhook secret from before their last rotation. They are valid until their time,
-- the old keys beside the new ones, the old secret for a second signature; then they mean nothing.
ALTER TABLE partners
    ADD COLUMN old_access_key text CONSTRAINT partners_old_access_key_key UNIQUE,
    ADD COLUMN old_secret_key bytea,
    ADD COLUMN old_keys_until timestamptz,
    ADD COLUMN old_webhook_secret bytea,
    ADD COLUMN old_webhook_secret_until timestamptz;
