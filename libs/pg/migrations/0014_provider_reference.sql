-- serves: 6
-- Providers that name a purchase by an id of their own (docs/decisions/0029-three-upstreams.md).

-- The provider's own id of the purchase, such as its order number; null until the provider has named it, and for providers
-- that know the purchase by our id only. The settlement of a purchase writes it, and look-ups and collects read it. It has
-- no index: a callback names a placement by our id.
ALTER TABLE placements ADD COLUMN provider_reference text;
