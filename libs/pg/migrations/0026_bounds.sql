-- serves: 24
-- What a role may store is bounded, because other programs read it. A time that is infinite or lies outside of the years 1 to
-- 9999 cannot be held by our programs and ended each one that read it, and a reason of 130 MB filled the memory of the
-- provisioners. So each table has a constraint `…_bounds`: its times are finite and in these years, and none of its texts,
-- documents and sealed values is larger than 100,000 bytes, which is far more than any program of ours writes. Three columns
-- may hold one infinity, which is a mark there, and which the readers translate.
-- The constraints are NOT VALID, so that no table is read under a lock: they hold for every new or changed row.

ALTER TABLE archived_orders ADD CONSTRAINT archived_orders_bounds CHECK (
    archived_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND octet_length(external_order_id) <= 100000) NOT VALID;

ALTER TABLE archives ADD CONSTRAINT archives_bounds CHECK (
    least(began_at, completed_at, ordered_before, first_at, last_at) >= '0001-01-01 00:00:00+00'
    AND greatest(began_at, completed_at, ordered_before, first_at, last_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(folder), octet_length(manifest_sha256), pg_column_size(files), pg_column_size(keys)) <= 100000) NOT VALID;

ALTER TABLE commit_losses ADD CONSTRAINT commit_losses_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND octet_length(told) <= 100000) NOT VALID;

ALTER TABLE endpoints ADD CONSTRAINT endpoints_bounds CHECK (
    least(moving_since, failing_since, told_at, exhausted_told_at) >= '0001-01-01 00:00:00+00'
    AND greatest(moving_since, failing_since, told_at, exhausted_told_at) <= '9999-12-31 00:00:00+00'
    AND (blocked_until = 'infinity' OR blocked_until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
    AND octet_length(told) <= 100000) NOT VALID;

ALTER TABLE esim_requests ADD CONSTRAINT esim_requests_bounds CHECK (
    least(at, usage_asked_at, ends_at, read_at, usage_failed_at, give_back_asked_at, attempted_at, not_returned_at, ended_at) >= '0001-01-01 00:00:00+00'
    AND greatest(at, usage_asked_at, ends_at, read_at, usage_failed_at, give_back_asked_at, attempted_at, not_returned_at, ended_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back), octet_length(reason), octet_length(message)) <= 100000) NOT VALID;

ALTER TABLE further_endpoints ADD CONSTRAINT further_endpoints_bounds CHECK (
    least(old_secret_until, verified_at, created_at, code_until) >= '0001-01-01 00:00:00+00'
    AND greatest(old_secret_until, verified_at, created_at, code_until) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(purpose), octet_length(url), octet_length(secret), octet_length(old_secret), octet_length(headers), octet_length(code_digest), pg_column_size(events)) <= 100000) NOT VALID;

ALTER TABLE hourly ADD CONSTRAINT hourly_bounds CHECK (
    hour BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND octet_length(stage) <= 100000) NOT VALID;

ALTER TABLE operations ADD CONSTRAINT operations_bounds CHECK (
    least(created_at, cancelled_at) >= '0001-01-01 00:00:00+00'
    AND greatest(created_at, cancelled_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(kind), octet_length(operator), octet_length(via), octet_length(reason), pg_column_size(filter)) <= 100000) NOT VALID;

ALTER TABLE operator_actions ADD CONSTRAINT operator_actions_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(operator), octet_length(database_role), octet_length(command), octet_length(target), octet_length(reason), octet_length(via), octet_length(source), pg_column_size(before), pg_column_size(after)) <= 100000) NOT VALID;

ALTER TABLE operator_sessions ADD CONSTRAINT operator_sessions_bounds CHECK (
    least(created_at, used_at, ends_at) >= '0001-01-01 00:00:00+00'
    AND greatest(created_at, used_at, ends_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(source), octet_length(issuer), octet_length(name), octet_length(role), octet_length(token_digest)) <= 100000) NOT VALID;

ALTER TABLE operator_sign_ins ADD CONSTRAINT operator_sign_ins_bounds CHECK (
    until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND octet_length(subject) <= 100000) NOT VALID;

ALTER TABLE operators ADD CONSTRAINT operators_bounds CHECK (
    least(setup_until, disabled_at, signed_in_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(setup_until, disabled_at, signed_in_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(role), octet_length(password), octet_length(setup_digest)) <= 100000) NOT VALID;

ALTER TABLE options ADD CONSTRAINT options_bounds CHECK (
    greatest(octet_length(name), octet_length(provider), octet_length(provider_option_id), octet_length(environment), octet_length(cost_currency), pg_column_size(details), pg_column_size(alternatives), pg_column_size(countries)) <= 100000) NOT VALID;

ALTER TABLE partners ADD CONSTRAINT partners_bounds CHECK (
    least(old_keys_until, old_webhook_secret_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(old_keys_until, old_webhook_secret_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key), octet_length(webhook_url), octet_length(moved_to), octet_length(secret_key), octet_length(old_secret_key), octet_length(webhook_secret), octet_length(old_webhook_secret), pg_column_size(webhook_events)) <= 100000) NOT VALID;

ALTER TABLE provider_lanes ADD CONSTRAINT provider_lanes_bounds CHECK (
    least(since, updated_at) >= '0001-01-01 00:00:00+00'
    AND greatest(since, updated_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(provider), octet_length(lane), octet_length(instance), octet_length(reason)) <= 100000) NOT VALID;

ALTER TABLE provider_references ADD CONSTRAINT provider_references_bounds CHECK (
    octet_length(reference) <= 100000) NOT VALID;

ALTER TABLE provider_replicas ADD CONSTRAINT provider_replicas_bounds CHECK (
    until BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(provider), octet_length(instance)) <= 100000
    AND share BETWEEN 0 AND 1e9) NOT VALID;

ALTER TABLE providers ADD CONSTRAINT providers_bounds CHECK (
    least(open_until, changed_at, failing_since) >= '0001-01-01 00:00:00+00'
    AND greatest(open_until, changed_at, failing_since) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(reason)) <= 100000
    AND openings BETWEEN 0 AND 1000000000
    AND version BETWEEN 0 AND 9000000000000000000) NOT VALID;

ALTER TABLE pulses ADD CONSTRAINT pulses_bounds CHECK (
    least(at, started_at) >= '0001-01-01 00:00:00+00'
    AND greatest(at, started_at) <= '9999-12-31 00:00:00+00'
    AND octet_length(stage) <= 100000) NOT VALID;

ALTER TABLE redeliveries ADD CONSTRAINT redeliveries_bounds CHECK (
    least(since, until, after_at, created_at, ended_at, cancelled_at) >= '0001-01-01 00:00:00+00'
    AND greatest(since, until, after_at, created_at, ended_at, cancelled_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(state), octet_length(phase)) <= 100000) NOT VALID;

ALTER TABLE refused_requests ADD CONSTRAINT refused_requests_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(kind), octet_length(reason), octet_length(errors), octet_length(method), octet_length(path), octet_length(external_order_id)) <= 100000) NOT VALID;

ALTER TABLE retention ADD CONSTRAINT retention_bounds CHECK (
    began_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND (up_to = '-infinity' OR up_to BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
    AND greatest(octet_length(class), octet_length(after)) <= 100000) NOT VALID;

ALTER TABLE retention_due ADD CONSTRAINT retention_due_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND octet_length(topup_id) <= 100000) NOT VALID;

ALTER TABLE source_addresses ADD CONSTRAINT source_addresses_bounds CHECK (
    told_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND pg_column_size(addresses) <= 100000) NOT VALID;

ALTER TABLE sweeps ADD CONSTRAINT sweeps_bounds CHECK (
    least(up_to, fence_at) >= '0001-01-01 00:00:00+00'
    AND greatest(up_to, fence_at) <= '9999-12-31 00:00:00+00'
    AND octet_length(stage) <= 100000) NOT VALID;
