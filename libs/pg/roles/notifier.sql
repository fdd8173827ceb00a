-- The notifier delivers. It reads profiles, webhook URLs and webhook secrets. It changes none of them, but erases what
-- is past its term.
GRANT SELECT (partner_id, name, environment, price_list, old_keys_until, has_further_endpoints, disabled_at, created_at)
    ON partners TO esim_notifier;
-- The health of endpoints, and the codes that verify channels for notices.
GRANT SELECT, UPDATE (failures, blocks, blocked_until, probe, moving_since, paused_by_partner, failing_since, told, told_at,
                      exhausted_told_at, unproven_since, code_digest, code_until, code_tries, offered, offered_by)
    ON partner_endpoints TO esim_notifier;
-- The addresses that partners were told.
GRANT SELECT, UPDATE (addresses, told_at) ON system TO esim_notifier;
-- Only for FOR SHARE, which needs the privilege to update a column. An update fails: its trigger raises the
-- configuration's version, which this role may not do.
GRANT UPDATE (created_at) ON partners TO esim_notifier;
GRANT SELECT ON orders, placements, topups, esims, deliveries, walks TO esim_notifier;
-- Accounts that fell below the thresholds of their partners.
GRANT EXECUTE ON FUNCTION tell_low_balances(uuid) TO esim_notifier;
-- What partners may order, to tell those who asked for it what has changed.
GRANT SELECT (option_id, name, details, countries, data_mb, unlimited, days, enabled, environment, version) ON options TO esim_notifier;
GRANT SELECT ON price_lists, prices TO esim_notifier;
GRANT SELECT (price_list) ON partners TO esim_notifier;
-- Retention keeps the profile of an eSIM that is being extended.
GRANT SELECT (topup_id, state) ON extensions TO esim_notifier;
-- The comparison of accounts with what was ordered, and what its metrics tell of balances and prices.
GRANT SELECT (extension_id, partner_id, currency, price) ON extensions TO esim_notifier;
GRANT SELECT ON accounts, account_entries, price_lists, prices, options TO esim_notifier;
GRANT UPDATE (result) ON walks TO esim_notifier;

-- It deletes events whose term has ended, or that have become pointless before they were sent.
GRANT INSERT, DELETE ON deliveries TO esim_notifier;
GRANT UPDATE (state, attempt, schedule_start, attempted_at, status, error, delivered_at, duration_ms) ON deliveries
    TO esim_notifier;
GRANT SELECT, INSERT, DELETE ON further_deliveries TO esim_notifier;
GRANT SELECT, INSERT, UPDATE, DELETE ON work, held TO esim_notifier;
GRANT SELECT, INSERT ON delivery_attempts TO esim_notifier;
GRANT UPDATE (up_to, after, began_at, fence_at, fence_xid) ON walks TO esim_notifier;

-- Resends: it works them off, and deletes old ones.
GRANT SELECT, DELETE, UPDATE (phase, after_at, after_id, resent, ended_at) ON resends TO esim_notifier;

-- Retention: docs/decisions/0018-retention.md.
GRANT UPDATE (profile, erased_at) ON esims TO esim_notifier;
GRANT DELETE ON delivery_attempts TO esim_notifier;
GRANT SELECT, DELETE ON operator_actions TO esim_notifier;
GRANT SELECT, DELETE ON archived_orders, refused_requests TO esim_notifier;
GRANT SELECT (history_id, order_id, provider, at), DELETE ON history TO esim_notifier;

-- Its pulse, and what it does if the server has lost commits.
GRANT SELECT, INSERT, UPDATE, DELETE ON pulses, minutely TO esim_notifier;
GRANT EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) TO esim_notifier;
