-- Ingress stores orders, refuses them, and acts for partners on what is theirs.
GRANT SELECT (partner_id, environment, access_key, secret_key, old_access_key, old_secret_key, old_keys_until,
              disabled_at, max_in_flight, requests_per_second, orders_per_second, units_per_second,
              signed_body_required, created_at, version)
    ON partners TO esim_ingress;
GRANT SELECT, DELETE, INSERT (key_id, partner_id, name, access_key, secret_key, rights, networks, units_per_day),
    UPDATE (name, rights, networks, units_per_day)
    ON partner_keys TO esim_ingress;
GRANT SELECT, INSERT, UPDATE, DELETE ON partner_key_uses TO esim_ingress;
-- It notes that a key is used after its end, and keeps one whose overlap is over.
GRANT SELECT, INSERT (access_key, partner_id, ended_at, used_since, used_at), UPDATE (used_since, used_at)
    ON ended_keys TO esim_ingress;
GRANT SELECT ON options, system, orders, placements TO esim_ingress;
GRANT SELECT (topup_id, placement_id, position, option_id, state, reason, terms, metadata) ON topups TO esim_ingress;

-- All columns of orders, so that a new column needs no grant. This adds little to what ingress may do anyway: it may also
-- set `created_at` and `erased_at`, which decide nothing about what is bought or delivered. The columns of placements and
-- topups are listed, because their states do.
GRANT INSERT ON orders TO esim_ingress;
GRANT INSERT (placement_id, order_id, partner_id, provider, lane, alternatives, first_claim) ON placements TO esim_ingress;
GRANT INSERT (topup_id, placement_id, position, option_id, provider_option_id, terms) ON topups TO esim_ingress;

-- It moves placements, fails units and frees an external id only by this function, which refuses all of an order or none. A
-- lock of an order's row needs the privilege to change a column; this one decides nothing.
GRANT EXECUTE ON FUNCTION refuse_order(uuid, boolean) TO esim_ingress;
GRANT UPDATE (traceparent) ON orders TO esim_ingress;
-- What partners keep with their orders is added after them, so that orders without it cost nothing.
GRANT UPDATE (metadata) ON orders, topups TO esim_ingress;

-- What partners see and change themselves: docs/decisions/0017-partner-endpoints.md. Profiles go out in a partner's own
-- look-up, and a rotation keeps the old key and the old secret.
GRANT SELECT (name) ON partners TO esim_ingress;
GRANT SELECT ON esims, deliveries, work, held, delivery_attempts, partner_units TO esim_ingress;
GRANT UPDATE (access_key, secret_key, old_access_key, old_secret_key, old_keys_until) ON partners TO esim_ingress;
GRANT UPDATE (version) ON system TO esim_ingress;
GRANT SELECT (has_further_endpoints), UPDATE (has_further_endpoints) ON partners TO esim_ingress;
GRANT SELECT, DELETE,
    INSERT (endpoint_id, partner_id, nth, purpose, url, secrets, secret_ends, events, headers, created_at),
    UPDATE (url, secrets, secret_ends, events, headers, moving_since, blocked_until, paused_by_partner, probe, unproven_since)
    ON partner_endpoints TO esim_ingress;
-- It verifies a channel for notices only by this function, which asks for the code.
GRANT EXECUTE ON FUNCTION verify_channel(uuid, text) TO esim_ingress;
GRANT SELECT ON further_deliveries TO esim_ingress;
GRANT EXECUTE ON FUNCTION deliver_to(uuid, text, uuid) TO esim_ingress;
GRANT UPDATE (state, schedule_start, delivered_at) ON deliveries TO esim_ingress;
GRANT INSERT (delivery_id, partner_id, kind, created_at, credential, ends_at, endpoint_id) ON deliveries TO esim_ingress;
GRANT INSERT ON delivery_attempts TO esim_ingress;
GRANT INSERT, UPDATE ON work TO esim_ingress;
GRANT DELETE ON held TO esim_ingress;
-- The record of what partners change. Time and role are those of the database, and a policy lets it record partners only.
GRANT SELECT, INSERT (action_id, operator, command, target, affected, reason, via, source, before, after)
    ON operator_actions TO esim_ingress;

-- Resends, which the notifiers work off; partners call them redeliveries. The walks of the sweeps tell which pending deliveries have no row in `work` yet.
GRANT SELECT, UPDATE (ended_at, cancelled_at),
    INSERT (resend_id, partner_id, delivery_id, state, since, until, matching, phase, after_at, after_id, resent, ended_at, batch_id, asked_by,
            via, reason)
    ON resends TO esim_ingress;
GRANT SELECT ON walks TO esim_ingress;

-- Its pulse, and what it does if the server has lost commits.
GRANT SELECT, INSERT, UPDATE, DELETE ON pulses, minutely TO esim_ingress;
GRANT EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) TO esim_ingress;

-- The external id of an archived order stays taken, and look-ups say that the order is archived.
GRANT SELECT ON archived_orders TO esim_ingress;

-- When topups failed and were given back, for the walk of their partner.
GRANT SELECT ON topup_changes TO esim_ingress;

-- Requests that it refused: it keeps the newest ones of each partner.
GRANT SELECT, INSERT, DELETE ON refused_requests TO esim_ingress;

-- What partners ask about delivered eSIMs. A provisioner answers.
GRANT SELECT, INSERT (topup_id, partner_id, provider, usage_asked_at, offers_asked_at, give_back, give_back_asked_at, give_back_cause,
                      suspend, suspension, suspension_asked_at),
    UPDATE (usage_asked_at, usage_failure, usage_failed_at, offers_asked_at, give_back, give_back_asked_at, give_back_cause, claim,
            not_returned_at, reason, message, ended_at, suspend, suspension, suspension_asked_at, suspension_not_done_at, suspension_reason,
            suspension_message, suspension_ended_at)
    ON esim_requests TO esim_ingress;
GRANT SELECT, INSERT (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, price, currency)
    ON extensions TO esim_ingress;

-- Prices and accounts: docs/decisions/0040-money.md. It holds what orders cost; what becomes of it is booked by functions that
-- read the units themselves.
GRANT SELECT (price_list) ON partners TO esim_ingress;
GRANT SELECT ON price_lists, prices, accounts, account_entries TO esim_ingress;
-- A partner sets the threshold below which it is told, and is told at once if it is below already.
GRANT UPDATE (held, warn_below) ON accounts TO esim_ingress;
GRANT EXECUTE ON FUNCTION tell_low_balances(uuid) TO esim_ingress;
-- A partner sets its balance in the sandbox.
GRANT EXECUTE ON FUNCTION set_sandbox_balance(uuid, text, bigint) TO esim_ingress;
GRANT EXECUTE ON FUNCTION lock_accounts(uuid[]) TO esim_ingress;

-- The pages to install from: docs/decisions/0041-install-page.md.
GRANT SELECT (shop, install_urls), UPDATE (shop, install_urls) ON partners TO esim_ingress;
GRANT UPDATE (install_page) ON esims TO esim_ingress;
