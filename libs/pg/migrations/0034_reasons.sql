-- no-transaction
-- serves: 18
-- The reasons of placements and units are codes with a detail now (domain::reason). This maps the prose of older versions once,
-- in batches. What it does not know becomes `legacy` with the text as its detail. Programs of older schemas show the codes as
-- they are, and what they write meanwhile is read as `legacy`.
DO $$
DECLARE
    codes constant text := '^(not_sent|rejected|outcome_unknown|search_proves_nothing|profiles_late|profiles_uncollectable'
        '|profile_unreadable|confirmation_code_needed|purchase_vanished|bought_unexpectedly|sold_twice|response_unstorable'
        '|row_unreadable|unit_failed|given_up|order_refused|order_cancelled|legacy)(: |$)';
    mapped constant text := $map$CASE
        WHEN reason = 'bought, but its profiles do not come' THEN 'profiles_late'
        WHEN starts_with(reason, 'bought, but its profiles cannot be collected: ')
            THEN 'profiles_uncollectable: ' || substr(reason, 47)
        WHEN reason = 'bought, but the provider no longer knows it' THEN 'purchase_vanished'
        WHEN starts_with(reason, 'the provider rejected it: ') THEN 'rejected: ' || substr(reason, 27)
        WHEN starts_with(reason, 'outcome unknown: the provider lists no such purchase') THEN 'search_proves_nothing'
        WHEN starts_with(reason, 'outcome unknown: ') THEN 'outcome_unknown: ' || substr(reason, 18)
        WHEN starts_with(reason, 'not bought after ') OR starts_with(reason, 'restored from a dump: ')
            THEN 'outcome_unknown: ' || reason
        WHEN reason ~ '^attempt [0-9]+ was bought although ' THEN 'bought_unexpectedly: ' || reason
        WHEN starts_with(reason, 'the provider''s response conflicts with stored data') THEN 'sold_twice: ' || reason
        WHEN starts_with(reason, 'the provider''s response cannot be stored') THEN 'response_unstorable'
        WHEN starts_with(reason, 'its row cannot be read: ') THEN 'row_unreadable: ' || substr(reason, 25)
        WHEN reason = 'settled by an operator as not bought' THEN 'given_up'
        WHEN reason = 'its order was refused' THEN 'order_refused'
        WHEN reason = 'its order was cancelled' THEN 'order_cancelled'
        WHEN starts_with(reason, 'the provider says ') THEN 'unit_failed: ' || reason
        WHEN state = 'placing' THEN 'outcome_unknown: ' || reason
        WHEN state = 'accepted' THEN 'not_sent: ' || reason
        WHEN state = 'placed' THEN 'profiles_uncollectable: ' || reason
        ELSE 'legacy: ' || reason END$map$;
    last uuid := '00000000-0000-0000-0000-000000000000';
    next uuid;
    last_topup text := '';
    next_topup text;
BEGIN
    LOOP
        SELECT placement_id INTO next
        FROM (SELECT placement_id FROM placements WHERE placement_id > last ORDER BY placement_id LIMIT 5000) page
        ORDER BY placement_id DESC LIMIT 1;
        EXIT WHEN next IS NULL;
        EXECUTE 'UPDATE placements SET reason = ' || mapped || ' WHERE placement_id > $1 AND placement_id <= $2 AND reason !~ $3'
            USING last, next, codes;
        COMMIT;
        last := next;
    END LOOP;
    LOOP
        SELECT topup_id INTO next_topup
        FROM (SELECT topup_id FROM topups WHERE topup_id > last_topup ORDER BY topup_id LIMIT 5000) page
        ORDER BY topup_id DESC LIMIT 1;
        EXIT WHEN next_topup IS NULL;
        EXECUTE 'UPDATE topups SET reason = ' || mapped || ' WHERE topup_id > $1 AND topup_id <= $2 AND reason !~ $3'
            USING last_topup, next_topup, codes;
        COMMIT;
        last_topup := next_topup;
    END LOOP;
END
$$;
