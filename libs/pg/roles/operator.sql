-- Operators, through esimctl. They read no profile. `migrate`, `recover`, `master-key` and `archive` need
-- the owner.
GRANT SELECT ON system, partners, options, orders, placements, topups, work, held, deliveries,
    provider_references, minutely, delivery_attempts, further_deliveries, providers, provider_lanes, provider_replicas,
    pulses, commit_losses, walks, operator_actions
    TO esim_operator;
GRANT SELECT (topup_id, provider, provider_unit_id, iccid, ready_at, delivery_id, erased_at, returned_at) ON esims
    TO esim_operator;

GRANT UPDATE (version) ON system TO esim_operator;
GRANT INSERT ON partners, options TO esim_operator;
GRANT INSERT (action_id, operator, command, target, affected, reason, via, source, before, after)
    ON operator_actions TO esim_operator;
GRANT UPDATE (name, environment, access_key, secret_key, old_access_key, old_secret_key, old_keys_until,
              disabled_at, max_in_flight,
              requests_per_second, orders_per_second, units_per_second, signed_body_required, has_further_endpoints,
              erased_at, version)
    ON partners TO esim_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON partner_endpoints, partner_keys, partner_key_uses TO esim_operator;
GRANT SELECT ON ended_keys TO esim_operator;
GRANT UPDATE ON options, providers TO esim_operator;
-- Lists of a provider are read at its rate, in which `esimctl` takes a share like a replica of the provisioner.
GRANT INSERT, UPDATE, DELETE ON provider_replicas TO esim_operator;
-- What is bought to try an account, and what it proves.
GRANT SELECT, UPDATE (reference, ended_at, same_again, same_for_s, proved_at, evidence),
    INSERT (purchase_id, provider, account, provider_option_id, units) ON provider_proofs TO esim_operator;
GRANT EXECUTE ON FUNCTION resolve_placement(uuid, text, text, text) TO esim_operator;
GRANT EXECUTE ON FUNCTION route_option(uuid, text, jsonb) TO esim_operator;
-- What has been entered by hand is no longer parked.
GRANT UPDATE (state, reason, disputed, unknowns) ON placements TO esim_operator;
GRANT UPDATE (state, schedule_start, delivered_at) ON deliveries TO esim_operator;
GRANT INSERT ON delivery_attempts TO esim_operator;
GRANT INSERT, UPDATE, DELETE ON work, held TO esim_operator;
GRANT SELECT, DELETE, UPDATE (ended_at, cancelled_at),
    INSERT (resend_id, partner_id, state, since, until, matching, phase, after_at, after_id, batch_id, asked_by, via, reason,
            delivery_id, resent, ended_at, skipped)
    ON resends TO esim_operator;

-- A profile that an operator enters by hand, with its webhook.
GRANT INSERT (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest),
    UPDATE (iccid, ready_at, delivery_id, code_digest) ON esims TO esim_operator;
GRANT INSERT ON deliveries TO esim_operator;

-- Retention and erasure.
GRANT UPDATE (days, after, up_to, began_at, result) ON walks TO esim_operator;
GRANT SELECT, DELETE ON refused_requests TO esim_operator;
GRANT UPDATE (profile, erased_at) ON esims TO esim_operator;
GRANT UPDATE (reason, metadata) ON topups TO esim_operator;
GRANT UPDATE (traceparent, metadata, erased_at) ON orders TO esim_operator;
GRANT UPDATE (reason, refusal_status, refusal_message, tried, alternatives, first_claim) ON placements TO esim_operator;
GRANT DELETE ON delivery_attempts, deliveries, further_deliveries TO esim_operator;
GRANT UPDATE (error, traceparent) ON deliveries TO esim_operator;

-- Operators who sign in at the console.
GRANT SELECT, INSERT, UPDATE (role, password, setup_digest, setup_until, disabled_at) ON operators TO esim_operator;
GRANT SELECT (operator_id, issuer, name), DELETE ON operator_sessions TO esim_operator;

-- Where archived orders are.
GRANT SELECT ON archives, archived_orders TO esim_operator;

-- What partners asked about delivered eSIMs, and parked give-backs.
GRANT SELECT, DELETE ON esim_requests TO esim_operator;
GRANT SELECT, UPDATE (message) ON extensions TO esim_operator;
GRANT EXECUTE ON FUNCTION resolve_extension(uuid, integer, boolean) TO esim_operator;
GRANT EXECUTE ON FUNCTION resolve_give_back(text, integer, boolean) TO esim_operator;

-- What did not go straight. An erasure removes its texts.
GRANT SELECT, UPDATE (reason, detail, before, after),
    INSERT (order_id, placement_id, topup_id, provider, kind, attempt, reason, detail, before, after)
    ON history TO esim_operator;

-- Prices, accounts, and what is booked by hand. Entries are written by functions only.
GRANT UPDATE (price_list) ON partners TO esim_operator;
-- An erased partner has no pages to install from.
GRANT UPDATE (shop, install_urls) ON partners TO esim_operator;
GRANT SELECT ON price_lists, prices, accounts, account_entries TO esim_operator;
GRANT INSERT, UPDATE ON price_lists TO esim_operator;
GRANT INSERT, UPDATE ON prices TO esim_operator;
GRANT INSERT (partner_id, currency, credit_limit), UPDATE (credit_limit) ON accounts TO esim_operator;
GRANT EXECUTE ON FUNCTION lock_accounts(uuid[]) TO esim_operator;
GRANT EXECUTE ON FUNCTION account_for(uuid[]) TO esim_operator;
GRANT EXECUTE ON FUNCTION book_entry(uuid, text, text, bigint, text, text, text) TO esim_operator;
