-- serves: 14
-- A partner's own limit of orders per second; null: the service's default.
ALTER TABLE partners
    ADD COLUMN orders_per_second integer,
    ADD CONSTRAINT partners_orders_per_second CHECK (orders_per_second > 0) NOT VALID;
