-- serves: 6
-- Moving a partner to another cell (docs/decisions/0026-any-server-lost.md, "Cells").

-- The cell to which the partner is moving or has moved; null if this cell serves it. Ingress answers the requests of such a
-- partner with 503, so that it repeats them until the proxy sends them to the other cell. Only `esimctl partner move` sets
-- it, as the owner of the tables.
ALTER TABLE partners ADD COLUMN moved_to text;
