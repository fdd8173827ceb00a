-- Ingress stores orders and refuses them. It reads partners' request keys and no other secret.
GRANT SELECT (partner_id, environment, access_key, secret_key, old_access_key, old_secret_key, old_keys_until,
              disabled_at, max_in_flight, requests_per_second, units_per_second, created_at, version)
    ON partners TO esim_ingress;
GRANT SELECT ON options, configuration_version, orders, placements TO esim_ingress;
GRANT SELECT (topup_id, placement_id, position, option_id, state, reason) ON topups TO esim_ingress;
GRANT SELECT (placement_id) ON placement_due TO esim_ingress;

GRANT INSERT (order_id, partner_id, external_order_id, traceparent, answer_by, refusable) ON orders TO esim_ingress;
GRANT INSERT (placement_id, order_id, partner_id, provider, lane) ON placements TO esim_ingress;
GRANT INSERT (topup_id, placement_id, position, option_id, provider_option_id) ON topups TO esim_ingress;

-- Migration 0022 restricts the states that ingress can set.
GRANT UPDATE (refused) ON orders TO esim_ingress;
GRANT UPDATE (state) ON placements TO esim_ingress;
GRANT UPDATE (state, reason) ON topups TO esim_ingress;
GRANT DELETE ON placement_due TO esim_ingress;
