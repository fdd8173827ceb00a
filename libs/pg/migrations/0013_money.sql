-- serves: 3
-- contract: extensions_bounds and partners_bounds come back in the same transaction, wider by a new column. A
-- partner without a price list gets no row of any of these tables, and units have no price unless a program that knows
-- prices has stored them. An older provisioner that makes a priced unit ready leaves its entry out; `account_for` writes it,
-- when the placement is settled again or an operator calls it.
--
-- What partners pay. A price list says what each option costs in one currency; a partner may have one. A unit gets its price when
-- its order is stored, as one of its terms (`domain::agreed`), which no later change of a list touches. An account holds what is
-- available to a partner in one currency, and its entries say why. All amounts are whole numbers of the currency's minor unit.
CREATE TABLE price_lists (
    price_list text CONSTRAINT price_lists_pkey PRIMARY KEY,
    -- The code of ISO 4217.
    currency text NOT NULL,
    -- Raised by each change of the list or its prices, so that ingress reads it again.
    version bigint NOT NULL,
    CONSTRAINT price_lists_bounds CHECK (greatest(octet_length(price_list), octet_length(currency)) <= 100000)
);
CREATE POLICY all_rows ON price_lists USING (true) WITH CHECK (true);
CREATE TRIGGER price_lists_version BEFORE INSERT OR UPDATE ON price_lists
    FOR EACH ROW EXECUTE FUNCTION next_configuration_version();
CREATE CONSTRAINT TRIGGER price_list_changed AFTER INSERT OR UPDATE ON price_lists DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION configuration_changed();

-- The price of an option from a time on, until its next row.
CREATE TABLE prices (
    price_list text NOT NULL REFERENCES price_lists,
    option_id uuid NOT NULL,
    valid_from timestamptz NOT NULL DEFAULT now(),
    -- Null: from then on the list does not have the option, so partners with this list cannot order it.
    amount bigint CONSTRAINT prices_amount CHECK (amount BETWEEN 0 AND 1000000000000),
    CONSTRAINT prices_pkey PRIMARY KEY (price_list, option_id, valid_from),
    CONSTRAINT prices_bounds CHECK (
        valid_from BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00' AND octet_length(price_list) <= 100000)
);
CREATE POLICY all_rows ON prices USING (true) WITH CHECK (true);

-- What an option costs in a price list at a time, and since when; no row if the list never had it until then, and no amount if it
-- has it no longer.
CREATE FUNCTION price_in(list text, option uuid, moment timestamptz DEFAULT now())
RETURNS TABLE (amount bigint, currency text, valid_from timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT p.amount, l.currency, p.valid_from FROM prices p JOIN price_lists l ON l.price_list = p.price_list
    WHERE p.price_list = list AND p.option_id = option AND p.valid_from <= moment
    ORDER BY p.valid_from DESC LIMIT 1
$$;

ALTER TABLE partners ADD COLUMN price_list text;
ALTER TABLE partners ADD CONSTRAINT partners_price_list_fkey FOREIGN KEY (price_list) REFERENCES price_lists NOT VALID;
ALTER TABLE partners DROP CONSTRAINT partners_bounds;
ALTER TABLE partners ADD CONSTRAINT partners_bounds CHECK (
    least(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'
    AND greatest(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key),
                 octet_length(secret_key), octet_length(old_secret_key), octet_length(price_list)) <= 100000) NOT VALID;

-- What a partner has in one currency. `posted` is what its entries add up to, `held` the prices of its units whose outcome is open.
-- Whoever changes both a unit and the account locks the account before it changes anything, so that nobody waits in a circle.
CREATE TABLE accounts (
    partner_id uuid NOT NULL REFERENCES partners,
    currency text NOT NULL,
    posted bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0 CONSTRAINT accounts_held CHECK (held >= 0),
    -- How far `posted - held` may go below zero by an order; null: as far as it likes. 0 is a prepaid account.
    credit_limit bigint DEFAULT 0 CONSTRAINT accounts_credit_limit CHECK (credit_limit >= 0),
    -- The number of the last entry, and its time. Times never go back, so that a month of entries is a range of numbers.
    last_entry bigint NOT NULL DEFAULT 0,
    last_entry_at timestamptz NOT NULL DEFAULT now(),
    opened_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT accounts_pkey PRIMARY KEY (partner_id, currency),
    CONSTRAINT accounts_bounds CHECK (
        least(opened_at, last_entry_at) >= '0001-01-01 00:00:00+00'
        AND greatest(opened_at, last_entry_at) <= '9999-12-31 00:00:00+00' AND octet_length(currency) <= 100000)
) WITH (fillfactor = 50);
CREATE POLICY all_rows ON accounts USING (true) WITH CHECK (true);

-- What has changed the balance of an account, numbered from 1 on without gaps. Nobody changes or deletes an entry.
CREATE TABLE account_entries (
    partner_id uuid NOT NULL,
    currency text NOT NULL,
    number bigint NOT NULL,
    -- `domain::money::EntryKind`.
    kind text NOT NULL CONSTRAINT account_entries_kind
        CHECK (kind IN ('charge', 'release', 'late_charge', 'refund', 'deposit', 'adjustment')),
    -- What it changes the balance by, and the balance after it.
    amount bigint NOT NULL,
    balance bigint NOT NULL,
    -- The part of what was held that it ends.
    released bigint NOT NULL DEFAULT 0,
    -- The unit that it is about. There is no reference, because entries outlive their orders.
    topup_id text COLLATE "C",
    -- The extension of that unit that it is about; null if it is about the unit itself.
    extension_id uuid,
    -- Of a deposit or an adjustment: the operator's id of it, so that a repeat is not booked again.
    reference text,
    reason text,
    made_by text NOT NULL,
    at timestamptz NOT NULL,
    CONSTRAINT account_entries_pkey PRIMARY KEY (partner_id, currency, number),
    CONSTRAINT account_entries_account FOREIGN KEY (partner_id, currency) REFERENCES accounts,
    CONSTRAINT account_entries_amounts CHECK (CASE kind
        WHEN 'charge' THEN amount <= 0 AND released = -amount
        WHEN 'release' THEN amount = 0 AND released >= 0
        WHEN 'late_charge' THEN amount <= 0 AND released = 0
        WHEN 'refund' THEN amount >= 0 AND released = 0
        WHEN 'deposit' THEN amount > 0 AND released = 0
        ELSE amount <> 0 AND released = 0 END),
    CONSTRAINT account_entries_subject CHECK (
        (topup_id IS NOT NULL) = (kind IN ('charge', 'release', 'late_charge', 'refund'))
        AND (reference IS NOT NULL) = (kind IN ('deposit', 'adjustment'))
        AND (extension_id IS NULL OR kind IN ('charge', 'release', 'late_charge'))),
    CONSTRAINT account_entries_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(currency), octet_length(kind), octet_length(topup_id), octet_length(reference),
                     octet_length(reason), octet_length(made_by)) <= 100000)
);
-- A unit is charged or released, and that once; it is charged late or refunded once. So is an extension.
CREATE UNIQUE INDEX account_entries_unit ON account_entries (topup_id, (CASE kind WHEN 'release' THEN 'charge' ELSE kind END))
    WHERE topup_id IS NOT NULL AND extension_id IS NULL;
CREATE UNIQUE INDEX account_entries_extension ON account_entries (extension_id, (CASE kind WHEN 'release' THEN 'charge' ELSE kind END))
    WHERE extension_id IS NOT NULL;
-- The months of an account.
CREATE INDEX account_entries_at ON account_entries (partner_id, currency, at, number);
-- The same payment is booked once.
CREATE UNIQUE INDEX account_entries_reference ON account_entries (partner_id, currency, reference) WHERE reference IS NOT NULL;
CREATE POLICY all_rows ON account_entries USING (true) WITH CHECK (true);

CREATE FUNCTION account_entry_stays() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'an entry of an account is never changed or deleted; book an adjustment instead'
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER account_entry_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON account_entries
    FOR EACH STATEMENT EXECUTE FUNCTION account_entry_stays();

-- Locks the accounts of the partners of these placements, before anything of the placements is locked.
CREATE FUNCTION lock_accounts(of_placements uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM FROM accounts a
    WHERE a.partner_id IN (SELECT p.partner_id FROM placements p WHERE p.placement_id = ANY (of_placements))
    ORDER BY a.partner_id, a.currency FOR NO KEY UPDATE;
END
$$;
REVOKE EXECUTE ON FUNCTION lock_accounts(uuid[]) FROM PUBLIC;

-- Writes the entries that the units of these placements lack, by what has become of them; how often and by whom it is called
-- makes no difference (`domain::money::PricedUnit`). Each account is updated once. Returns the number of entries.
CREATE FUNCTION account_for(of_placements uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    entries bigint;
    moment timestamptz;
BEGIN
    -- First, so that the next statement sees what whoever held the lock has written.
    PERFORM lock_accounts(of_placements);
    moment := clock_timestamp();
    WITH unit AS (
        SELECT p.partner_id, t.terms::jsonb->'price'->>'currency' AS currency, t.topup_id,
               (t.terms::jsonb->'price'->>'amount')::bigint AS price, e.ready_at IS NOT NULL AS is_ready,
               t.state = 'failed' AS has_failed, e.returned_at IS NOT NULL AS is_returned,
               ARRAY (SELECT n.kind FROM account_entries n WHERE n.topup_id = t.topup_id AND n.extension_id IS NULL) AS kinds
        FROM placements p JOIN topups t ON t.placement_id = p.placement_id LEFT JOIN esims e ON e.topup_id = t.topup_id
        WHERE p.placement_id = ANY (of_placements) AND t.terms IS NOT NULL AND t.terms::jsonb ? 'price'
    ), due AS (
        SELECT unit.*, entry.kind, entry.amount, entry.released, entry.nth
        FROM unit CROSS JOIN LATERAL (VALUES
            (1, 'charge', -price, price, is_ready AND NOT 'charge' = ANY (kinds) AND NOT 'release' = ANY (kinds)),
            (2, 'late_charge', -price, 0, is_ready AND 'release' = ANY (kinds) AND NOT 'late_charge' = ANY (kinds)),
            (3, 'release', 0, price,
             has_failed AND NOT is_ready AND NOT 'charge' = ANY (kinds) AND NOT 'release' = ANY (kinds)),
            (4, 'refund', price, 0, is_ready AND is_returned AND NOT 'refund' = ANY (kinds))
        ) AS entry (nth, kind, amount, released, is_due)
        WHERE entry.is_due
    ), written AS (
        INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, made_by, at)
        SELECT a.partner_id, a.currency, a.last_entry + row_number() OVER entries_of, due.kind, due.amount,
               a.posted + sum(due.amount) OVER entries_of, due.released, due.topup_id, 'system',
               greatest(moment, a.last_entry_at)
        FROM due JOIN accounts a ON a.partner_id = due.partner_id AND a.currency = due.currency
        WINDOW entries_of AS (PARTITION BY a.partner_id, a.currency ORDER BY due.topup_id, due.nth)
        RETURNING partner_id, currency, amount, released
    ), summed AS (
        SELECT w.partner_id, w.currency, sum(w.amount) AS amount, sum(w.released) AS released, count(*) AS entries
        FROM written w GROUP BY w.partner_id, w.currency
    ), updated AS (
        UPDATE accounts a
        SET posted = a.posted + s.amount, held = a.held - s.released, last_entry = a.last_entry + s.entries,
            last_entry_at = greatest(moment, a.last_entry_at)
        FROM summed s WHERE a.partner_id = s.partner_id AND a.currency = s.currency
        RETURNING s.entries
    )
    SELECT coalesce(sum(u.entries), 0) INTO entries FROM updated u;
    RETURN entries;
END
$$;
REVOKE EXECUTE ON FUNCTION account_for(uuid[]) FROM PUBLIC;

-- Units fail and come back in many ways, all of them rare, so triggers account for them. Units become ready in batches, whose
-- settlement accounts for them at once.
CREATE FUNCTION unit_accounted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM account_for(ARRAY (SELECT t.placement_id FROM topups t WHERE t.topup_id = NEW.topup_id AND t.terms IS NOT NULL));
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_failure_accounted AFTER UPDATE OF state ON topups FOR EACH ROW
    WHEN (NEW.state = 'failed' AND OLD.state <> 'failed' AND NEW.terms IS NOT NULL) EXECUTE FUNCTION unit_accounted();
CREATE TRIGGER esim_return_accounted AFTER UPDATE OF returned_at ON esims FOR EACH ROW
    WHEN (NEW.returned_at IS NOT NULL AND OLD.returned_at IS NULL) EXECUTE FUNCTION unit_accounted();

-- What an extension costs, from its order on; null if its partner has no price list.
ALTER TABLE extensions
    ADD COLUMN price bigint,
    ADD COLUMN currency text,
    DROP CONSTRAINT extensions_bounds,
    ADD CONSTRAINT extensions_bounds CHECK (
        least(asked_at, attempted_at, not_added_at, ended_at) >= '0001-01-01 00:00:00+00'
        AND greatest(asked_at, attempted_at, not_added_at, ended_at) <= '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(provider), octet_length(external_id), octet_length(provider_option_id),
                     octet_length(state), pg_column_size(baseline), octet_length(reference), octet_length(reason),
                     octet_length(message), octet_length(currency)) <= 100000) NOT VALID;

-- Adds one entry to an account, under its lock. Returns its number; null if there is no such account, or if the reference was booked
-- before. Only the functions below call it.
CREATE FUNCTION add_entry(of_partner uuid, in_currency text, as_kind text, of_amount bigint, ends bigint, of_topup text,
                          of_extension uuid, with_reference text, because text, author text) RETURNS bigint
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    account accounts;
    moment timestamptz;
BEGIN
    SELECT * INTO account FROM accounts a WHERE a.partner_id = of_partner AND a.currency = in_currency FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    moment := greatest(clock_timestamp(), account.last_entry_at);
    INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, extension_id, reference,
                                 reason, made_by, at)
    VALUES (of_partner, in_currency, account.last_entry + 1, as_kind, of_amount, account.posted + of_amount, ends, of_topup,
            of_extension, with_reference, because, author, moment)
    ON CONFLICT (partner_id, currency, reference) WHERE reference IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE accounts SET posted = posted + of_amount, held = held - ends, last_entry = last_entry + 1, last_entry_at = moment
    WHERE partner_id = of_partner AND currency = in_currency;
    RETURN account.last_entry + 1;
END
$$;
REVOKE EXECUTE ON FUNCTION add_entry(uuid, text, text, bigint, bigint, text, uuid, text, text, text) FROM PUBLIC;

-- Books what became of an extension. One that was refused may turn out to be added, as a unit that failed may turn out ready.
CREATE FUNCTION extension_accounted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM add_entry(
        NEW.partner_id, NEW.currency,
        CASE WHEN NEW.state = 'refused' THEN 'release' WHEN OLD.state = 'refused' THEN 'late_charge' ELSE 'charge' END,
        CASE WHEN NEW.state = 'added' THEN -NEW.price ELSE 0 END, CASE WHEN OLD.state = 'refused' THEN 0 ELSE NEW.price END,
        NEW.topup_id, NEW.extension_id, NULL, NULL, 'system');
    RETURN NULL;
END
$$;
CREATE TRIGGER extension_accounted AFTER UPDATE OF state ON extensions FOR EACH ROW
    WHEN (NEW.state IN ('added', 'refused') AND OLD.state NOT IN ('added', NEW.state) AND NEW.price IS NOT NULL)
    EXECUTE FUNCTION extension_accounted();

-- A provisioner that ends an extension holds its order, then the account, and only then changes the extension.
CREATE OR REPLACE FUNCTION keep_order_of_extension(kept uuid) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM FROM extensions x
    JOIN topups t ON t.topup_id = x.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE x.extension_id = kept
    FOR KEY SHARE OF o;
    PERFORM FROM extensions x JOIN accounts a ON a.partner_id = x.partner_id AND a.currency = x.currency
    WHERE x.extension_id = kept AND x.price IS NOT NULL
    FOR NO KEY UPDATE OF a;
    RETURN NEXT kept;
END
$$;

-- An operator's word for a parked extension, with the locks in the same order.
CREATE OR REPLACE FUNCTION resolve_extension(resolved uuid, after_attempt integer, is_added boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM keep_order_of_extension(resolved);
    UPDATE extensions
    SET state = CASE WHEN is_added THEN 'added' ELSE 'refused' END, ended_at = now(), reason = 'resolved', message = NULL,
        not_added_at = NULL
    WHERE extension_id = resolved AND state = 'parked' AND attempt = after_attempt;
    RETURN FOUND;
END
$$;

-- Books a deposit or an adjustment. Returns the number of the entry; null if the reference was booked before.
CREATE FUNCTION book_entry(of_partner uuid, in_currency text, as_kind text, of_amount bigint, with_reference text, because text,
                           operator text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF as_kind NOT IN ('deposit', 'adjustment') THEN
        RAISE EXCEPTION 'only deposits and adjustments are booked by hand' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN add_entry(of_partner, in_currency, as_kind, of_amount, 0, NULL, NULL, with_reference, because, operator);
END
$$;
REVOKE EXECUTE ON FUNCTION book_entry(uuid, text, text, bigint, text, text, text) FROM PUBLIC;
