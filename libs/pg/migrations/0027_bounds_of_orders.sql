-- serves: 24
-- The bounds of 0026 for the tables that every order is stored in, in a migration of their own, so that the locks of the two do
-- not wait for each other. PostgreSQL reads a constraint from its text at each execution; these cost 2 to 5 µs of a statement.

ALTER TABLE deliveries ADD CONSTRAINT deliveries_bounds CHECK (
    least(ends_at, attempted_at, delivered_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(ends_at, attempted_at, delivered_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(kind), octet_length(topup_id), octet_length(credential), octet_length(state), octet_length(error), pg_column_size(notice)) <= 100000) NOT VALID;

ALTER TABLE delivery_attempts ADD CONSTRAINT delivery_attempts_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(class), octet_length(answer)) <= 100000) NOT VALID;

ALTER TABLE esims ADD CONSTRAINT esims_bounds CHECK (
    least(ready_at, erased_at, returned_at) >= '0001-01-01 00:00:00+00'
    AND greatest(ready_at, erased_at, returned_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(topup_id), octet_length(provider), octet_length(provider_unit_id), octet_length(iccid), octet_length(profile)) <= 100000) NOT VALID;

ALTER TABLE further_deliveries ADD CONSTRAINT further_deliveries_bounds CHECK (
    octet_length(topup_id) <= 100000) NOT VALID;

ALTER TABLE held ADD CONSTRAINT held_bounds CHECK (
    at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(state), octet_length(provider), octet_length(lane)) <= 100000) NOT VALID;

ALTER TABLE orders ADD CONSTRAINT orders_bounds CHECK (
    least(refused_at, answer_by, cancelled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(refused_at, answer_by, cancelled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(external_order_id), octet_length(traceparent)) <= 100000) NOT VALID;

ALTER TABLE placements ADD CONSTRAINT placements_bounds CHECK (
    least(attempted_at, not_found_at, placed_at, hinted_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(attempted_at, not_found_at, placed_at, hinted_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(provider), octet_length(lane), octet_length(state), octet_length(reason), octet_length(refusal_status), octet_length(refusal_message), octet_length(provider_reference), pg_column_size(alternatives), pg_column_size(tried)) <= 100000) NOT VALID;

ALTER TABLE topups ADD CONSTRAINT topups_bounds CHECK (
    greatest(octet_length(topup_id), octet_length(provider_option_id), octet_length(state), octet_length(reason)) <= 100000) NOT VALID;

ALTER TABLE work ADD CONSTRAINT work_bounds CHECK (
    (at = '-infinity' OR at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
    AND greatest(octet_length(kind), octet_length(provider), octet_length(lane)) <= 100000) NOT VALID;
