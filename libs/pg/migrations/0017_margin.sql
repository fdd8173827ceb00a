-- serves: 1
-- contract: walks_bounds and account_entries_bounds are added again at once, and allow the same and the new columns. An older
-- program adds entries by the functions below, which note the costs for it.
--
-- Whether the accounts of partners agree with what was ordered is compared every night; what was found is kept with the time of it.
ALTER TABLE walks
    -- `accounts`: what the comparison has found (`desk::operator::balances`).
    ADD COLUMN result jsonb,
    DROP CONSTRAINT walks_bounds,
    ADD CONSTRAINT walks_bounds CHECK (
        (up_to = '-infinity' OR up_to BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND least(began_at, fence_at) >= '0001-01-01 00:00:00+00' AND greatest(began_at, fence_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(name), octet_length(after), pg_column_size(result)) <= 100000) NOT VALID;
INSERT INTO walks (name) VALUES ('accounts');

-- What was sold, and what it cost us: copied when the entry is made and never joined later, because options change. Null in
-- entries of before, and in those that sell nothing.
ALTER TABLE account_entries
    ADD COLUMN provider text,
    ADD COLUMN option_id uuid,
    -- In ten-thousandths of the currency, as options have it; null if it is not known. A refund has that of its charge, because
    -- the provider took the eSIM back.
    ADD COLUMN cost bigint,
    ADD COLUMN cost_currency text,
    ADD CONSTRAINT account_entries_cost CHECK (cost >= 0) NOT VALID,
    DROP CONSTRAINT account_entries_bounds,
    ADD CONSTRAINT account_entries_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(currency), octet_length(kind), octet_length(topup_id), octet_length(reference),
                     octet_length(reason), octet_length(made_by), octet_length(provider), octet_length(cost_currency)) <= 100000)
        NOT VALID;

-- What a purchase of an option cost, as far as that is known: the cost of the option, if the provider and the product are still
-- those that were bought. If the product has since another price, the one that was agreed stands behind its `@`. Of a further
-- provider of the option no currency is known.
CREATE FUNCTION cost_of(option uuid, at_provider text, product text)
RETURNS TABLE (cost bigint, currency text)
LANGUAGE sql STABLE AS $$
    SELECT known.cost, o.cost_currency
    FROM options o
    CROSS JOIN LATERAL (
        SELECT CASE WHEN o.provider_option_id = product THEN o.cost
                    ELSE (substring(product FROM '@([0-9]{1,12}(?:[.][0-9]{1,4})?)$')::numeric * 10000)::bigint END AS cost
    ) known
    WHERE o.option_id = option AND o.provider = at_provider AND o.cost_currency IS NOT NULL AND known.cost IS NOT NULL
$$;

-- Notes what an entry has sold and what that cost.
CREATE FUNCTION entry_costed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    product text;
BEGIN
    IF NEW.extension_id IS NOT NULL THEN
        SELECT x.provider, x.option_id, x.provider_option_id INTO NEW.provider, NEW.option_id, product
        FROM extensions x WHERE x.extension_id = NEW.extension_id;
    ELSIF NEW.kind = 'refund' THEN
        SELECT n.provider, n.option_id, n.cost, n.cost_currency INTO NEW.provider, NEW.option_id, NEW.cost, NEW.cost_currency
        FROM account_entries n
        WHERE n.topup_id = NEW.topup_id AND n.extension_id IS NULL AND n.kind IN ('charge', 'late_charge');
        RETURN NEW;
    ELSE
        SELECT p.provider, t.option_id, t.provider_option_id INTO NEW.provider, NEW.option_id, product
        FROM topups t JOIN placements p ON p.placement_id = t.placement_id WHERE t.topup_id = NEW.topup_id;
    END IF;
    SELECT c.cost, c.currency INTO NEW.cost, NEW.cost_currency FROM cost_of(NEW.option_id, NEW.provider, product) c;
    RETURN NEW;
END
$$;
CREATE TRIGGER entry_costed BEFORE INSERT ON account_entries FOR EACH ROW
    WHEN (NEW.kind IN ('charge', 'late_charge', 'refund')) EXECUTE FUNCTION entry_costed();
