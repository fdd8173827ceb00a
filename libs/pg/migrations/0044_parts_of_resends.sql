-- no-transaction
-- serves: 24
-- The redeliveries of operations become parts of the resends that 0029 has made of the operations.
DO $$
BEGIN
    UPDATE resends r SET batch_id = p.operation_id, asked_by = o.operator, via = o.via, reason = o.reason
    FROM operation_parts p JOIN operations o ON o.operation_id = p.operation_id
    WHERE r.resend_id = p.redelivery_id AND r.batch_id IS NULL;
END
$$;
