-- serves: 14
-- A partner cancelled the order before anything of it was bought. It is refused, too: its external id is free again.
ALTER TABLE orders ADD COLUMN cancelled_at timestamptz;
