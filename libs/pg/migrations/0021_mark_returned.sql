-- serves: 9
-- Marks a unit as given back, for every role that ends a give-back (docs/decisions/0032-after-delivery.md).
-- Programs of version 0.1.0 know no give-backs, so none of them marks units.

-- Nobody can install a unit that its provider has back, so its profile is erased with the mark. The console may resolve
-- give-backs, and must not be able to change any other profile. So the function has the owner's rights, and erases only the
-- profile of a unit whose give-back has ended as returned, which the same transaction records.
CREATE FUNCTION mark_returned(returned_topup text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE esims SET profile = NULL, erased_at = coalesce(erased_at, now()), returned_at = now()
    WHERE topup_id = returned_topup AND returned_at IS NULL
      AND (SELECT r.give_back = 'returned' FROM esim_requests r WHERE r.topup_id = returned_topup);
    RETURN FOUND;
END
$$;
REVOKE EXECUTE ON FUNCTION mark_returned(text) FROM PUBLIC;
