-- `esimctl order show` finds orders by external id: those that stand by the unique key, the others by this.
CREATE INDEX orders_refused ON orders (external_order_id) WHERE refused;
