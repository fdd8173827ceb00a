-- serves: 55
-- What the first claim of a placement needs of its order and its units, as one JSON text, so that it reads no other table.
-- It is written with the order and removed by the settlement. It is null on rows that programs of older schemas insert, and
-- on placements of many units; there the claim reads the order and the topups, which hold the same. Later attempts always do,
-- because a new provider has other names for the products.
ALTER TABLE placements ADD COLUMN first_claim text;
ALTER TABLE placements ADD CONSTRAINT placements_first_claim_bounds CHECK (octet_length(first_claim) <= 100000) NOT VALID;
