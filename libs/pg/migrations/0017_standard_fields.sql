-- serves: 6
-- What is known of an option in the same form for all providers, so that partners can filter by it
-- (docs/decisions/0031-catalogue.md).

-- All four are null if nothing is known. An option has either `data_mb` or `unlimited`.
ALTER TABLE options
    -- Codes of ISO 3166-1 alpha-2, sorted.
    ADD COLUMN countries text[],
    -- In MB, of which 1024 are a GB; null if the data is unlimited or not known.
    ADD COLUMN data_mb integer,
    ADD COLUMN unlimited boolean,
    -- For how many days the product is valid.
    ADD COLUMN days integer,
    -- What the provider asks of us for one unit, in ten-thousandths of the currency, and the code of the currency. Partners do
    -- not see it.
    ADD COLUMN cost bigint,
    ADD COLUMN cost_currency text;
