-- serves: 1
-- contract: partners_bounds is added again at once, and allows the same and the new column.
--
-- The page from which a traveller installs an eSIM. Its address is computed from the topup and the number of the page, so
-- nothing is stored of a page before one is ended.
ALTER TABLE partners
    -- The name, the colours and the help of the shop, as `domain::shop` writes them; null if the partner has no pages.
    ADD COLUMN shop text,
    -- Whether the partner's look-ups show the addresses.
    ADD COLUMN install_urls boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT partners_bounds,
    ADD CONSTRAINT partners_bounds CHECK (
        least(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key),
                     octet_length(secret_key), octet_length(old_secret_key), octet_length(price_list), octet_length(shop))
            <= 100000) NOT VALID;

-- The number of the page that is open. Null is the first one; a negative number says that this page was ended and no other one
-- was opened.
ALTER TABLE esims ADD COLUMN install_page integer;
