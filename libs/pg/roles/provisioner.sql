-- The provisioner buys. It reads nothing of partners. It may read profiles only because PostgreSQL demands it for
-- ON CONFLICT DO UPDATE SET profile = excluded.profile.
GRANT SELECT ON orders, placements, options, providers TO esim_provisioner;
GRANT SELECT (topup_id, placement_id, position, option_id, provider_option_id, state, reason, terms)
    ON topups TO esim_provisioner;
GRANT SELECT ON esims TO esim_provisioner;
GRANT SELECT (delivery_id) ON deliveries TO esim_provisioner;
GRANT SELECT ON walks TO esim_provisioner;

GRANT UPDATE (state, attempt, attempted_at, not_found_at, placed_at, reason, unknowns, hinted_at, refusal_status,
              refusal_message, disputed, provider_reference, provider, lane, alternatives, tried, first_claim)
    ON placements TO esim_provisioner;
GRANT UPDATE (state, reason, provider_option_id) ON topups TO esim_provisioner;
GRANT INSERT (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest) ON esims TO esim_provisioner;
GRANT UPDATE (iccid, profile, ready_at, delivery_id, code_digest) ON esims TO esim_provisioner;
-- It creates the webhooks of eSIMs, whose kind is the default, and no events: triggers make those.
GRANT INSERT (delivery_id, partner_id, topup_id, order_id, option_id, terms, external_order_id, traceparent, ordered_at)
    ON deliveries TO esim_provisioner;

GRANT SELECT, INSERT, UPDATE, DELETE ON work, held, provider_replicas, provider_lanes TO esim_provisioner;
GRANT INSERT, UPDATE ON providers TO esim_provisioner;
GRANT UPDATE (up_to, fence_at, fence_xid) ON walks TO esim_provisioner;
-- It relies on what was proved for an account, and proves nothing itself.
GRANT SELECT (provider, account, same_again, same_for_s, proved_at) ON provider_proofs TO esim_provisioner;

-- Its pulse, and what it does if the server has lost commits.
GRANT SELECT, INSERT, UPDATE, DELETE ON pulses, minutely TO esim_provisioner;
GRANT EXECUTE ON FUNCTION commits_lost(uuid, bigint, bigint) TO esim_provisioner;

-- It answers what partners ask about delivered eSIMs, and marks those that were given back.
GRANT SELECT, UPDATE ON esim_requests TO esim_provisioner;
GRANT SELECT, UPDATE (state, attempt, attempted_at, baseline, not_added_at, reference, has_new_profile, reason, message, ended_at)
    ON extensions TO esim_provisioner;
GRANT EXECUTE ON FUNCTION keep_order_of_extension(uuid) TO esim_provisioner;
GRANT EXECUTE ON FUNCTION mark_returned(text) TO esim_provisioner;
-- It asks for the use of eSIMs whose partners want to hear of it, and tells what is news.
GRANT EXECUTE ON FUNCTION begin_reading(text) TO esim_provisioner;
GRANT EXECUTE ON FUNCTION tell_of_use(text, text, text, jsonb) TO esim_provisioner;
GRANT EXECUTE ON FUNCTION poll_esims(text, integer) TO esim_provisioner;
-- What providers report is kept and confirmed by a call.
GRANT EXECUTE ON FUNCTION report_of_esim(text, text, text, text, text) TO esim_provisioner;
GRANT UPDATE (erased_at, returned_at) ON esims TO esim_provisioner;

-- What did not go straight. It reads how many attempts were not found.
GRANT SELECT (order_id, placement_id, kind, attempt),
    INSERT (order_id, placement_id, topup_id, provider, kind, attempt, reason, detail, before, after)
    ON history TO esim_provisioner;

-- What becomes of units that have prices is booked by these functions, which read the units themselves.
GRANT EXECUTE ON FUNCTION lock_accounts(uuid[]) TO esim_provisioner;
GRANT EXECUTE ON FUNCTION account_for(uuid[]) TO esim_provisioner;
