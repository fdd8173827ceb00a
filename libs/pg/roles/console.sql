-- The console: what it shows, and what its operators do there. What it reads of a profile is sealed, and only a console that
-- may show activation codes has the master key that opens it. It reads the sealed keys and secrets of partners only to keep
-- the old ones when it makes new ones; a console has the master keys for them only if it may make keys.
GRANT SELECT ON system, options, orders, placements, topups, work, held, deliveries, delivery_attempts,
    further_deliveries, providers, provider_lanes, provider_replicas, pulses, walks, operator_actions,
    resends, archives, archived_orders, provider_references, minutely, esim_requests, extensions, refused_requests
    TO esim_console;
GRANT SELECT (partner_id, name, environment, access_key, old_access_key, old_keys_until, disabled_at,
              max_in_flight, requests_per_second, orders_per_second, units_per_second, signed_body_required, has_further_endpoints, erased_at,
              created_at, version, shop, install_urls, price_list)
    ON partners TO esim_console;
GRANT SELECT (endpoint_id, partner_id, nth, lane, purpose, url, host, secret_ends, events, created_at, verified_at, code_until, failures,
              blocks, blocked_until, probe, paused_by_partner, moving_since, failing_since, told, told_at, exhausted_told_at,
              unproven_since),
      UPDATE (failures, blocks, blocked_until, probe, paused_by_partner)
    ON partner_endpoints TO esim_console;
GRANT SELECT (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, erased_at, returned_at)
    ON esims TO esim_console;

-- Signing in. A password is set by its link only. Accounts and their roles are given with a shell only; whom an OpenID
-- provider sends has a session, and no account.
GRANT SELECT (operator_id, name, role, password, setup_digest, setup_until, disabled_at),
      UPDATE (password, setup_digest, setup_until, signed_in_at)
    ON operators TO esim_console;
GRANT SELECT, INSERT, DELETE, UPDATE (used_at) ON operator_sessions TO esim_console;
GRANT SELECT, INSERT, UPDATE, DELETE ON operator_sign_ins TO esim_console;

-- What its operators change, each together with its record.
-- Time and role of a record are those of the database, and a policy lets it record only who has an account or a session.
GRANT INSERT (action_id, operator, command, target, affected, reason, via, source, before, after)
    ON operator_actions TO esim_console;
-- It moves placements and units only by this function, which resolves what is parked. A lock of a placement's row needs the
-- privilege to change a column; this one says when a provider has called about it.
GRANT EXECUTE ON FUNCTION resolve_placement(uuid, text, text, text) TO esim_console;
GRANT UPDATE (hinted_at) ON placements TO esim_console;
-- A parked give-back that is resolved as returned erases the profile. Only the function can do both, and for no other eSIM.
GRANT EXECUTE ON FUNCTION resolve_give_back(text, integer, boolean) TO esim_console;
GRANT EXECUTE ON FUNCTION resolve_extension(uuid, integer, boolean) TO esim_console;
GRANT UPDATE (state, schedule_start, delivered_at) ON deliveries TO esim_console;
GRANT INSERT (delivery_id, attempt, at, duration_ms, status, class) ON delivery_attempts TO esim_console;
GRANT INSERT, UPDATE (kind, at, provider, lane), DELETE ON work TO esim_console;
GRANT DELETE ON held TO esim_console;
GRANT UPDATE (open_until, reason, denied, openings, version, changed_at, failing_since) ON providers TO esim_console;
GRANT UPDATE (ended_at, cancelled_at),
    INSERT (resend_id, partner_id, state, since, until, matching, phase, after_at, after_id, batch_id, asked_by, via, reason,
            delivery_id, resent, ended_at, skipped)
    ON resends TO esim_console;

-- A partner whose key has leaked is disabled, or gets new keys; its limits are changed. Its configuration gets a new
-- version, which ingress reads.
GRANT SELECT (secret_key, old_secret_key),
      UPDATE (disabled_at, access_key, secret_key, old_access_key, old_secret_key, old_keys_until, max_in_flight,
              requests_per_second, orders_per_second, units_per_second)
    ON partners TO esim_console;
GRANT SELECT, DELETE ON partner_keys, partner_key_uses TO esim_console;
GRANT SELECT ON ended_keys TO esim_console;
GRANT UPDATE (version) ON system TO esim_console;
-- Its webhook URL and secret. The headers of an endpoint are read and written by the same statement, sealed.
GRANT SELECT (secrets, headers), UPDATE (url, events, headers, secrets, secret_ends, moving_since, unproven_since)
    ON partner_endpoints TO esim_console;
-- A product is bought at another one of its providers first.
GRANT EXECUTE ON FUNCTION route_option(uuid, text, jsonb) TO esim_console;
-- A test webhook, and what is asked about an eSIM for its partner.
GRANT INSERT (delivery_id, partner_id, kind, created_at, endpoint_id) ON deliveries TO esim_console;
GRANT INSERT (topup_id, partner_id, provider, usage_asked_at, give_back, give_back_asked_at, give_back_cause, suspend, suspension,
              suspension_asked_at),
      UPDATE (usage_asked_at, usage_failure, usage_failed_at, give_back, give_back_asked_at, give_back_cause, claim,
              not_returned_at, reason, message, ended_at, suspend, suspension, suspension_asked_at, suspension_not_done_at,
              suspension_reason, suspension_message, suspension_ended_at)
    ON esim_requests TO esim_console;
GRANT SELECT ON partner_units TO esim_console;
-- A row lock needs the privilege to change a column: the order of such an eSIM is kept out of archives meanwhile, and a
-- webhook that waits for a URL is released once.
GRANT UPDATE (traceparent) ON orders TO esim_console;
GRANT UPDATE (lane) ON held TO esim_console;

-- If the server has lost commits, whoever notices it first stops all buying.
GRANT EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) TO esim_console;

-- What did not go straight, and what its operators resolve.
GRANT SELECT,
    INSERT (order_id, placement_id, topup_id, provider, kind, attempt, reason, detail, before, after)
    ON history TO esim_console;

-- What it shows of prices and accounts, and what its operators book. Entries are written by functions only. Whoever resolves a
-- placement locks the account first.
GRANT INSERT (partner_id, currency, credit_limit), UPDATE (credit_limit) ON accounts TO esim_console;
GRANT EXECUTE ON FUNCTION book_entry(uuid, text, text, bigint, text, text, text) TO esim_console;
GRANT SELECT ON price_lists, prices, accounts, account_entries TO esim_console;
GRANT EXECUTE ON FUNCTION lock_accounts(uuid[]) TO esim_console;
