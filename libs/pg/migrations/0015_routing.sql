-- serves: 6
-- Options that several providers sell (docs/decisions/0030-routing.md). An older program ignores these columns: it asks only
-- the first provider, and a rejection there ends the placement.

-- The pairs of provider and provider option that follow the first one, in order of preference:
-- [{"provider": …, "provider_option_id": …}, …].
ALTER TABLE options ADD COLUMN alternatives jsonb NOT NULL DEFAULT '[]';

-- The pairs that a placement may still go to, as the catalogue said when the order was accepted:
-- [{"provider": …, "lane": …, "options": {our option id: the provider's}}, …]. Null if none is left, and after an outcome
-- that left a purchase in doubt, because then no other provider may be asked.
ALTER TABLE placements ADD COLUMN alternatives jsonb;
-- The pairs that have rejected the placement: [{"provider": …, "lane": …, "attempt": …, "reason": …, "at": …}, …].
-- `attempt` is the last one there. Null if the first provider is the only one so far.
ALTER TABLE placements ADD COLUMN tried jsonb;
